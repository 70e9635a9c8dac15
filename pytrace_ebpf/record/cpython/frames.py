"""Which Python frames a process has open: a walk over its interpreter's thread states, from outside.

The walk itself, and reading code objects, happens in a process without rights (sandbox.py): what lies there is the
target's to choose. The target runs on meanwhile, so a walk is a snapshot that may be torn at its inner end. Each thread is walked
three times and only the outermost frames on which all walks agree are reported. Those of a thread that stands still are
exact; of one in motion, two walks agreed on a wrong inner frame about once in 2,000, which is why there are three.
"""

import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from pytrace_ebpf import processors
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import asking
from pytrace_ebpf.record.process.memory import Memory, MemoryFault, asked
from pytrace_ebpf.record.process.target import Target, living_threads, own_id

MAX_FRAMES = 100_000
_MAX_THREADS = 100_000
_MAX_ALL_FRAMES = 1_000_000
# Of processor time for all the frames of a process, or for the code objects that are asked for at once: three walks
# over 100 stacks of 1,000 frames took 0.6 s. And until the process that walks is given up.
_BUDGET_S, _PATIENCE_S = 2.0, 15.0
_MAX_TEXT = 8 << 20  # characters of all code objects that are asked for at once
_FRAME = struct.Struct("<QQ")
_WALKS = 3
_TRIES = 20
PTHREAD_TID = processors.here().thread_id
_SHIM = "__init__"
HEAD_BEFORE_MAIN = 8  # of struct pyinterpreters: the pointer to the newest interpreter, and the one to the main one
LAST_USED = 8  # of a thread state's status: bound_gilstate
_OWNED_BY_GENERATOR = 1
_TYPE, _TYPE_NAME = 8, 24  # of ob_type in an object and tp_name in a type object, every version; without a GIL both are further behind


@dataclass(frozen=True)
class OpenFrame:
    """One frame of a thread's stack, by address."""

    frame_address: int
    code_address: int


@dataclass(frozen=True)
class CodeInfo:
    """What a code object says of its function. `qualname` is None before 3.11, `flags` are co_flags."""

    file: str
    name: str
    qualname: str | None
    first_line: int
    flags: int

    @property
    def is_shim(self) -> bool:
        """Whether this is the interpreter's own code behind Class(...) on 3.12 and later, no function of the program."""
        return self.file == self.name == _SHIM


def open_frames(target: Target, seconds: float = _BUDGET_S, everywhere: bool = False) -> dict[int, list[OpenFrame]]:
    """The open Python frames of each thread (host thread id), outermost first; threads without any are left out.

    In the main interpreter; `everywhere`: in the one that the thread last ran, as far as others are known (3.12+).
    Entries from C and the interpreter's own `__init__` shims are no frames; suspended generators are on no stack.
    At most MAX_FRAMES a thread. What cannot be read, or not within `seconds` of processor time, is left out; nothing is raised.
    """
    if target.layout is None or target.runtime is None:
        return {}
    tids = host_tids(target.pid)
    if target.copied_id:
        tids.setdefault(target.copied_id, target.pid)
    given = {
        "pid": target.pid,
        "layout": target.layout,
        "runtime": target.runtime,
        "tids": list(tids.items()),
        "seconds": seconds,
        "everywhere": everywhere,
    }
    process = target.process
    try:
        walked = asking.ask(sandbox.parsers, "open_frames", given, process, dict[str, bytes], _PATIENCE_S, "frames")
    except ValueError:
        return {}
    known = {str(tid): tid for tid in tids.values()}
    return {
        known[tid]: [OpenFrame(*pair) for pair in _FRAME.iter_unpack(raw[: len(raw) // _FRAME.size * _FRAME.size])]
        for tid, raw in walked.items()
        if tid in known and len(raw) >= _FRAME.size
    }


def read_codes(target: Target, addresses: Sequence[int]) -> dict[int, CodeInfo]:
    """The code objects at `addresses`, without addresses that hold none, or none any more. Nothing is raised."""
    if target.layout is None or not addresses:
        return {}
    process, given = target.process, {"pid": target.pid, "layout": target.layout, "addresses": list(addresses)}
    try:
        infos = asking.ask(sandbox.parsers, "read_codes", given, process, list[CodeInfo | None], _PATIENCE_S, "codes")
    except ValueError:
        return {}
    return {
        address: info
        for address, info in zip(addresses, infos, strict=False)
        if info is not None and all(-(1 << 31) <= number < 1 << 31 for number in (info.first_line, info.flags))
    }


def walk_frames(given: dict[str, Any], files: list[int]) -> Any:
    """What open_frames() asks for: raw pairs of addresses by thread. As far as the budget reaches."""
    memory = BudgetedMemory(given, files, given["seconds"])
    walk = Walk(memory, decode(Layout, given["layout"]))
    tids = dict(given["tids"])
    stacks: dict[str, bytes] = {}
    count = 0
    try:
        for state in walk.thread_states(given["runtime"], given["everywhere"]):
            tid = walk.thread_id(state, tids)
            frames = walk.settled_stack(state) if tid else []
            count += len(frames)
            if count > _MAX_ALL_FRAMES:
                break
            if frames:
                stacks[str(tid)] = b"".join(_FRAME.pack(frame.frame_address, frame.code_address) for frame in frames)
    except SpentError:
        pass
    return encode(stacks)


def walk_codes(given: dict[str, Any], files: list[int]) -> Any:
    """What read_codes() asks for: None for an address without a code object, and for those beyond the budget."""
    memory, layout = BudgetedMemory(given, files, _BUDGET_S), decode(Layout, given["layout"])
    infos: list[CodeInfo | None] = []
    length = 0
    try:
        for address in given["addresses"]:
            try:
                infos.append(read_code(memory, layout, address))
            except MemoryFault:
                infos.append(None)
            length += sum(len(text) for text in (infos[-1].file, infos[-1].name, infos[-1].qualname or "")) if infos[-1] else 0
            if length > _MAX_TEXT:
                break
    except SpentError:
        pass
    return encode(infos)


class SpentError(Exception):
    """The processor time for reading is used up."""


class BudgetedMemory(Memory):
    """A process's memory; reading raises SpentError once it has taken so many seconds of processor time."""

    def __init__(self, given: dict[str, Any], files: list[int], seconds: float) -> None:
        """`given` and `files`: as asking.ask() gives them."""
        super().__init__(*asked(given, files))
        self._end, self._reads = time.process_time() + seconds, 0

    def read(self, address: int, size: int) -> bytes:
        self._reads += 1
        if self._reads % 128 == 0 and time.process_time() > self._end:
            raise SpentError
        return super().read(address, size)


def read_code(memory: Memory, layout: Layout, address: int) -> CodeInfo:
    """The code object at `address`. Raises MemoryFault when there is none (any more)."""
    _check_code(memory, layout, address)
    qualname = layout.code_qualname
    return CodeInfo(
        file=memory.text(layout, memory.u64(address + layout.code_file)),
        name=memory.text(layout, memory.u64(address + layout.code_name)),
        qualname=None if qualname is None else memory.text(layout, memory.u64(address + qualname)),
        first_line=memory.i32(address + layout.code_first_line),
        flags=memory.i32(address + layout.code_flags),
    )


def _check_code(memory: Memory, layout: Layout, address: int) -> None:
    """Raise MemoryFault where there is no living code object: of a freed one the names may remain while other data has the rest."""
    more = layout.object_type - _TYPE
    head = memory.read(address, layout.object_type + 8)
    (type_object,) = struct.unpack_from("<Q", head, layout.object_type)
    lives = _lives_without_gil if more else _lives
    if not lives(head) or memory.read(memory.u64(type_object + _TYPE_NAME + more), 5) != b"code\0":
        raise MemoryFault(f"address {address:#x} of process {memory.pid} holds no code object")


def _lives(head: bytes) -> bool:
    """In freed memory the list of free blocks has its link, a pointer or 0, in place of the reference count, which never has bits 32 to 47 (3.14: 48 to 63 are flags)."""
    (count,) = struct.unpack_from("<Q", head)
    return count > 0 and not count >> 32 & 0xFFFF


def _lives_without_gil(head: bytes) -> bool:
    """There it has two counts, ob_ref_local and ob_ref_shared, which are both 0 once an object dies; the latter's low two bits are flags."""
    local, shared = struct.unpack_from("<Iq", head, 12)
    return local > 0 or shared >> 2 != 0


def host_tids(pid: int) -> dict[int, int]:
    """Thread id as the process itself sees it -> thread id on the host; they differ in a container."""
    if _is_numbered_alike(pid):
        return {tid: tid for tid in living_threads(pid)}
    return {own_id(pid, tid): tid for tid in living_threads(pid)}


def _is_numbered_alike(pid: int) -> bool:
    """Whether its threads have the same ids for itself as here: its processes have one number alone. Asking each thread takes 25 us."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return any(line.startswith("NSpid:") and len(line.split()) == 2 for line in status.splitlines())


class Walk:
    """Walks the structures of one interpreter."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self.memory = memory
        self.layout = layout
        self.frame_size = 8 + max(
            layout.frame_previous,
            layout.frame_code,
            layout.frame_owner or 0,
            layout.frame_running[0] if layout.frame_running else 0,
        )
        self.shims: dict[int, bool] = {}

    def thread_states(self, runtime: int, everywhere: bool = False) -> list[int]:
        """Addresses of thread states: the main interpreter's, or `everywhere` of those that each thread has the one that it used last."""
        layout, memory = self.layout, self.memory
        following, status = (layout.interpreter_next, layout.thread_status) if everywhere else (None, None)
        found: dict[int, bool] = {}
        with suppress(MemoryFault):  # the process is starting, ending, or a thread state was freed under the walk
            where = runtime + layout.runtime_main_interpreter - (0 if following is None else HEAD_BEFORE_MAIN)
            interpreter, interpreters = memory.u64(where), set[int]()
            while interpreter and interpreter not in interpreters and len(found) < _MAX_THREADS:
                interpreters.add(interpreter)
                state = memory.u64(interpreter + layout.interpreter_threads)
                while state and state not in found and len(found) < _MAX_THREADS:
                    found[state] = status is None or bool(memory.i32(state + status) & LAST_USED)
                    state = memory.u64(state + layout.thread_next)
                interpreter = 0 if following is None else memory.u64(interpreter + following)
        return [state for state, used in found.items() if used]

    def thread_id(self, state: int, tids: dict[int, int]) -> int | None:
        """The host thread id of a thread state, None for one that belongs to no living thread."""
        try:
            if self.layout.thread_native_id is not None:
                native = self.memory.u64(state + self.layout.thread_native_id)
                if native in tids:
                    return tids[native]
            pthread = self.memory.u64(state + self.layout.thread_pthread)
        except MemoryFault:
            return None
        for offset in PTHREAD_TID:
            try:
                own = self.memory.i32(pthread + offset)
            except MemoryFault:
                continue
            if own in tids:
                return tids[own]
        return None

    def settled_stack(self, state: int) -> list[OpenFrame]:
        """The outermost frames on which three walks in a row agree; none where they never agree even on the first."""
        for _ in range(_TRIES):
            try:
                walks = [self.stack(state) for _ in range(_WALKS)]
            except (MemoryFault, struct.error):
                continue
            agreed = takewhile(lambda level: len(set(level)) == 1, zip(*walks, strict=False))
            frames = [level[0] for level in agreed]
            if frames or not any(walks):
                return frames
        return []

    def stack(self, state: int) -> list[OpenFrame]:
        """One walk, outermost first. Raises MemoryFault when the stack moved away under it."""
        layout, memory = self.layout, self.memory
        frame = memory.u64(state + layout.thread_frame)
        if layout.cframe_frame is not None and frame:
            frame = memory.u64(frame + layout.cframe_frame)
        found: list[OpenFrame] = []
        seen: set[int] = set()
        raw = b""
        while frame and len(seen) < MAX_FRAMES:
            raw = memory.read(frame, self.frame_size)
            if frame in seen or not self._on_stack(raw):
                raise MemoryFault("the stack moved while it was read")
            seen.add(frame)
            code = struct.unpack_from("<Q", raw, layout.frame_code)[0] & ~3
            if not self._is_entry(raw) and not self._is_shim(code):
                found.append(OpenFrame(frame, code))
            frame = struct.unpack_from("<Q", raw, layout.frame_previous)[0]
        if seen and not frame and not self._is_outermost(raw):
            raise MemoryFault("the stack moved while it was read")
        return found[::-1]

    def _on_stack(self, raw: bytes) -> bool:
        """Whether a frame object runs: one that ended or yielded meanwhile has lost the way to its caller."""
        running = self.layout.frame_running
        return running is None or raw[running[0]] in running[1]

    def _is_entry(self, raw: bytes) -> bool:
        """Whether it stands for an entry from C into the interpreter, 3.12+."""
        owner = self.layout.frame_owner
        return owner is not None and raw[owner] >= self.layout.owner_shim

    def _is_outermost(self, raw: bytes) -> bool:
        """Whether a frame without a caller is the outermost one, rather than a generator that yielded meanwhile."""
        if self.layout.version >= (3, 12):
            return self._is_entry(raw)
        return self.layout.frame_owner is None or raw[self.layout.frame_owner] != _OWNED_BY_GENERATOR

    def _is_shim(self, code: int) -> bool:
        """Whether this is the interpreter's own code behind Class(...), 3.12+: both its file and its name are "__init__"."""
        if self.layout.version < (3, 12):
            return False
        if code not in self.shims:
            self.shims[code] = read_code(self.memory, self.layout, code).is_shim
        return self.shims[code]
