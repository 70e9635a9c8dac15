"""What a process is: its Python, the file its probes are in, its GIL.

Everything is read from /proc and from the mapped files, never from a path on disk: a package upgrade may have
replaced that file since the process started. The process is not stopped and nothing in it changes.
"""

import errno
import os
import re
import shlex
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.cpython.layout import Layout, is_free_threaded, layout_for
from pytrace_ebpf.record.kernel import memory_map
from pytrace_ebpf.record.kernel.file_status import status_of
from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.elf import PT_REGS, Binary, Version
from pytrace_ebpf.record.process import stat as process_stat
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.pinned import Descriptor, Ended, Pinned
from pytrace_ebpf.record.process.shares import Places
from pytrace_ebpf.record.rights.debugging import why_refused


class NotPython(TargetError):  # noqa: N818 - says what it is
    """What runs there is another program."""


class NoRoom(HostError):  # noqa: N818
    """This process can open no more files just now."""


_PAGE = os.sysconf("SC_PAGE_SIZE")
_ADDRESSES = 1 << 47  # a program's own
MOST_INTERPRETERS = 1 << 31  # that a row can have
_GIL_SIZE = 208 + processors.here().gil_wider  # sizeof(struct _gil_runtime_state), 3.12+; one word more where it may be off
_PATIENCE_S = 10.0  # for an ELF file: CPython's largest takes 0.1 s
_MOST_PARSED, _BINARY = 64, "binary"
_REGISTERS = frozenset((*PT_REGS, None))
_LIBPYTHON = re.compile(r"libpython\d[^/]*\.so[^/]*$")
_PYPY = re.compile(r"/(lib)?pypy[\d.]*(-c)?(\.so[^/]*)?$")
Said = TypeVar("Said")


@dataclass(frozen=True)
class Mapping:
    """One file-backed line of /proc/PID/maps."""

    start: int
    end: int
    offset: int
    executable: bool
    device: int
    inode: int
    path: str  # in the process's own mount namespace, without " (deleted)"
    deleted: bool


@dataclass(frozen=True)
class Target:
    """A live Python process, as it was when inspect() looked at it."""

    process: Pinned = field(compare=False, repr=False)
    pid: int
    ppid: int
    executable: str  # path in the process's own mount namespace, as text
    command: str  # command line, shell-quoted
    python_version: Version | None
    binary_file: Descriptor = field(compare=False, repr=False)  # the mapped file that was parsed, whatever has its name now
    binary_name: str  # what to call that file to a person: its path in the process's own mount namespace
    binary: Binary
    bias: int  # add to the binary's addresses
    runtime: int | None  # address of _PyRuntime in the process, 3.8+
    layout: Layout | None  # None for a version whose structures are not known
    free_threaded: bool
    jit: bool  # its environment turns the JIT on; whether that build has one cannot be seen from outside
    in_container: bool  # another pid or mount namespace than the tracer's
    threads: tuple[int, ...]
    copied_id: int = 0  # of a forked child: what its memory still calls its thread until that runs for the first time

    @property
    def memory(self) -> Memory:
        """The process's memory."""
        return self.process.memory

    @property
    def version_text(self) -> str | None:
        """The Python version, for example 3.11.2."""
        return ".".join(map(str, self.python_version)) if self.python_version else None

    @property
    def library(self) -> str:
        """The usual place of its standard library."""
        minor = ".".join(map(str, (self.python_version or (3, 0))[:2]))
        return str(Path(self.process.executable_name).parent.parent / "lib" / f"python{minor}")

    def forked(self, pid: int, tid: int) -> "Target":
        """The child `pid` that its thread `tid` has just forked: a copy, which may not have run yet. Raises as inspect() does."""
        child = pinned(pid)
        with its_own_doing(pid):
            same = child.runs(self.process.executable)
        if not same:
            raise TargetError(f"process {pid} is not what process {self.pid} was when it forked it")
        return replace(self, process=child, pid=pid, ppid=self.pid, threads=(pid,), copied_id=own_id(self.pid, tid))

    def is_initialized(self) -> bool:
        """Whether its interpreter is up, and not yet being taken down: Python code may be run in it."""
        if self.runtime is None or self.layout is None:
            return False
        try:
            return self.memory.i32(self.runtime + self.layout.runtime_initialized) != 0
        except MemoryFault:
            return False

    def gil_range(self) -> tuple[int, int]:
        """First address of the GIL's locks and the first behind them; (0, 0) where they are not known.

        Read anew each time: the interpreter of a process that has just started has no GIL yet.
        """
        if self.runtime is None or self.layout is None:
            return 0, 0
        if self.layout.runtime_gil:
            return self.runtime + self.layout.runtime_gil[0], self.runtime + self.layout.runtime_gil[1] + processors.here().gil_wider
        try:
            interpreter = self.memory.u64(self.runtime + self.layout.runtime_main_interpreter)
            gil = self.memory.u64(interpreter + (self.layout.interpreter_gil or 0))
        except MemoryFault:
            return 0, 0
        return (gil, gil + _GIL_SIZE + 8 * self.free_threaded) if 0 < gil < _ADDRESSES else (0, 0)

    def gil_is_on(self) -> bool:
        """Whether it has a GIL now: a free-threaded build has one where it was asked for, or where a module needs it."""
        first, end = self.gil_range()
        try:
            return not self.free_threaded or (first < end and self.memory.i32(first) != 0)  # `enabled` is the first field
        except MemoryFault:
            return False

    def interpreters(self) -> int:
        """How many interpreters it has made so far, the main one included; 0 where that is not known, or it is only being loaded."""
        if self.runtime is None or self.layout is None:
            return 0
        where = self.runtime + self.layout.runtime_main_interpreter
        try:  # next_id follows `main` in struct pyinterpreters, 3.8 to 3.15
            main, made = self.memory.u64(where), self.memory.u64(where + 8)
        except MemoryFault:
            return 0
        return made if main and made < MOST_INTERPRETERS else 0


def inspect(pid: int) -> Target:
    """Look at process `pid`.

    Raises TargetError (one sentence) when there is no such process, when it is not a Python, a kernel thread, a
    zombie, or ends meanwhile; HostError when this user may not look into it.
    """
    with _in_words(pid):
        return _inspect(pinned(pid))


def pinned(pid: int) -> Pinned:
    """Pin process `pid`. Raises TargetError or HostError as inspect() does."""
    with _in_words(pid):
        return Pinned(pid)


@contextmanager
def _in_words(pid: int) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ProcessLookupError, MemoryFault):
        raise Ended(f"process {pid} does not exist, or ended while it was looked at") from None
    except PermissionError:
        raise HostError(why_refused(pid)) from None
    except OSError as error:
        kind = NoRoom if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) else TargetError
        raise kind(f"process {pid} cannot be looked at ({error.strerror})") from None


@contextmanager
def its_own_doing(pid: int) -> Iterator[None]:
    """Whatever fails in here for what process `pid` does meanwhile is a TargetError: that process's alone."""
    try:
        yield
    except (OSError, MemoryFault) as error:
        raise TargetError(
            f"process {pid} ended or became another program while it was attached to ({getattr(error, 'strerror', None) or error})"
        ) from None


def links_libpython(pid: int) -> bool:
    """Whether the program of `pid` names a libpython that its loader is to map."""
    try:
        return any(_LIBPYTHON.search(name) for name in needed(pinned(pid).executable))
    except (OSError, ValueError, TargetError, HostError):
        return False


def maps_libpython(pid: int) -> bool:
    """Whether the code of a libpython is mapped by now."""
    try:
        return any(m.executable and _LIBPYTHON.search(m.path) for m in read_mappings(pid))
    except OSError:
        return False


def threads(pid: int) -> tuple[int, ...]:
    """Thread ids of a process, ascending. Raises FileNotFoundError or ProcessLookupError when it is gone."""
    return tuple(sorted(int(name) for name in os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208 - sometimes a hundred times a second


def is_zombie(pid: int) -> bool:
    """Whether the first thread of a process has ended. Raises OSError when it is gone."""
    return process_stat.fields(Path(f"/proc/{pid}/stat").read_bytes())[process_stat.STATE] in "ZX"


def own_id(pid: int, tid: int) -> int:
    """What a thread of process `pid` calls itself, in a container another number than here; `tid` where it is gone."""
    try:
        status = Path(f"/proc/{pid}/task/{tid}/status").read_text(errors="replace")
    except OSError:
        return tid
    return next((int(line.split()[-1]) for line in status.splitlines() if line.startswith("NSpid:")), tid)


def living_threads(pid: int) -> tuple[int, ...]:
    """The same; none when it is gone."""
    try:
        return threads(pid)
    except OSError:
        return ()


def _inspect(process: Pinned) -> Target:
    pid, executable = process.pid, as_text(process.executable_name)
    mappings = parse_mappings(process.read("maps"))
    file, name, binary = _interpreter(process, executable, mappings)
    bias = load_bias(binary, [m for m in mappings if m.path == name])
    runtime = binary.runtime_vaddr + bias if binary.runtime_vaddr else None
    version = binary.version
    target = Target(
        process=process,
        pid=pid,
        ppid=int(process.status()["PPid"]),
        executable=executable,
        command=command_line(pid),
        python_version=version,
        binary_file=file,
        binary_name=as_text(name),
        binary=binary,
        bias=bias,
        runtime=runtime,
        layout=layout_for(version, binary.debug_offsets) if version else None,
        free_threaded=is_free_threaded(binary.debug_offsets),
        jit=version is not None and version >= (3, 13) and _environment(process, "PYTHON_JIT") not in ("", "0"),
        in_container=bool({"pid", "mnt"} & process.foreign_namespaces),
        threads=threads(pid),
    )
    process.check()
    return target


def read_mappings(pid: int) -> list[Mapping]:
    """The file-backed mappings of a process, by address."""
    return parse_mappings(memory_map.read(pid, "maps"))


def parse_mappings(maps: bytes) -> list[Mapping]:
    """The file-backed mappings in the text of /proc/PID/maps, by address."""
    found = []
    for line in maps.decode(errors="surrogateescape").split("\n")[:-1]:
        span, permissions, offset, device, inode, *rest = line.split(maxsplit=5)
        if rest and inode != "0":
            start, _, end = span.partition("-")
            path = rest[0]
            found.append(
                Mapping(
                    start=int(start, 16),
                    end=int(end, 16),
                    offset=int(offset, 16),
                    executable="x" in permissions,
                    device=os.makedev(*(int(part, 16) for part in device.split(":"))),
                    inode=int(inode),
                    path=path.removesuffix(" (deleted)"),
                    deleted=path.endswith(" (deleted)"),
                )
            )
    return found


def _interpreter(process: Pinned, executable: str, mappings: list[Mapping]) -> tuple[Descriptor, str, Binary]:
    """(open, name, parsed) of the mapped file that holds the interpreter: the program or its libpython."""
    try:
        binary = parse(process.executable)
        if binary.symbol("Py_GetVersion"):
            return process.executable, executable, binary
        for mapping in mappings:
            if mapping.executable and _LIBPYTHON.search(mapping.path):
                executable, file = as_text(mapping.path), mapped_file(process, mapping)
                return file, mapping.path, parse(file)
    except ValueError as error:
        raise TargetError(f"process {process.pid} runs {executable}, which cannot be traced: {error}") from None
    if any(mapping.executable and _PYPY.search(mapping.path) for mapping in mappings):
        raise NotPython(f"process {process.pid} runs PyPy ({executable}), and only CPython can be traced")
    raise NotPython(f"process {process.pid} runs {executable}, which is not a Python")


_Identity = tuple[int, ...]
_parsed: dict[_Identity, Binary] = {}  # a handful of interpreters and C libraries, for any number of processes
_needed, _keeping = dict[_Identity, tuple[str, ...]](), threading.Lock()
_kept: Places[tuple[str, _Identity]] = Places(2 * _MOST_PARSED)  # by the files' owners: whoever changes his again and again loses his own


def identity(file: Descriptor) -> _Identity:
    """What identifies a file in its present state: its owner can set all of these but the last."""
    status = status_of(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _once(file: Descriptor, task: str, kind: type[Said], known: dict[_Identity, Said]) -> Said:
    key = identity(file)
    if (found := known.get(key)) is None:
        found = sandbox.parsers.ask(task, {}, [file], kind, _PATIENCE_S, (task, *key))
        with _keeping:
            if key not in known and _kept.has_room(owner := os.fstat(file.fileno()).st_uid):
                left = _kept.take((task, key), owner)
                known[key] = found
                if left is not None:
                    (_parsed if left[0] == _BINARY else _needed).pop(left[1], None)
    return found


def parse(file: Descriptor) -> Binary:
    """An ELF file, parsed once, by a process without rights. Raises OSError, and ValueError with one sentence for what is none."""
    binary = _once(file, _BINARY, Binary, _parsed)
    probes = [probe for probes in binary.probes.values() for probe in probes]
    if not {probe.frame for probe in probes} | {argument.register for probe in probes for argument in probe.arguments} <= _REGISTERS:
        raise ValueError("its probes have no registers that are known")
    return binary


def needed(file: Descriptor) -> tuple[str, ...]:
    """Names of the shared libraries that an ELF file asks its loader for; () for what is none. Raises as parse() does."""
    return _once(file, "needed", tuple[str, ...], _needed)


def mapped_file(process: Pinned, mapping: Mapping) -> Descriptor:
    """The file behind a mapping, open; by a name on disk only where that is the same file.

    Raises PermissionError where there is none for this user, FileNotFoundError where it is not mapped any more.
    """
    try:  # needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE
        return process.file(f"map_files/{mapping.start:x}-{mapping.end:x}")
    except PermissionError:
        # A chroot's paths are given from the tracer's root, a container's from its own.
        for named in (f"root{mapping.path}", mapping.path):
            with suppress(OSError):
                file = process.file(named)
                if not mapping.deleted and (found := status_of(file.fileno())).st_ino == mapping.inode and stat.S_ISREG(found.st_mode):
                    return file
        raise


def load_bias(binary: Binary, mappings: Iterable[Mapping]) -> int:
    """What to add to the binary's addresses where it is mapped so. Raises ProcessLookupError where it is not."""
    if not binary.is_pie:
        return 0
    for mapping in mappings:
        for segment in binary.segments:
            if segment.executable == mapping.executable and segment.offset // _PAGE * _PAGE == mapping.offset:
                return mapping.start - segment.vaddr // _PAGE * _PAGE
    raise ProcessLookupError  # its mappings are gone: it is ending


def as_text(path: str) -> str:
    """A path of whatever bytes as text that every table and terminal can hold."""
    return os.fsencode(path).decode(errors="replace")


def command_line(pid: int) -> str:
    """A process's command line, shell-quoted. Raises OSError when it is gone."""
    words = memory_map.read(pid, "cmdline").rstrip(b"\0").split(b"\0")
    return shlex.join(word.decode(errors="replace") for word in words)


def _environment(process: Pinned, name: str) -> str:
    """A variable of the environment the program was started with, "" where it is not set."""
    for line in process.read("environ").split(b"\0"):
        key, _, value = line.partition(b"=")
        if key == name.encode():
            return value.decode(errors="replace")
    return ""
