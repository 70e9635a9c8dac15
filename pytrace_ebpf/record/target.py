"""What a process is: its Python, the file its probes are in, its GIL.

Everything is read from /proc and from the mapped files, never from a path on disk: a package upgrade may have
replaced that file since the process started. The process is not stopped and nothing in it changes.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.elf import Binary, Version, needed, read_binary
from pytrace_ebpf.record.layout import Layout, is_free_threaded, layout_for
from pytrace_ebpf.record.memory import Memory, MemoryFault

_PAGE = os.sysconf("SC_PAGE_SIZE")
_GIL_SIZE = 208  # sizeof(struct _gil_runtime_state), 3.12+
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in field 9 of /proc/PID/stat
_LIBPYTHON = re.compile(r"libpython\d[^/]*\.so[^/]*$")
Said = TypeVar("Said")


@dataclass(frozen=True)
class Mapping:
    """One file-backed line of /proc/PID/maps."""

    start: int
    end: int
    offset: int
    executable: bool
    inode: int
    path: str  # in the process's own mount namespace, without " (deleted)"
    deleted: bool


@dataclass(frozen=True)
class Target:
    """A live Python process, as it was when inspect() looked at it."""

    pid: int
    ppid: int
    executable: str  # path in the process's own mount namespace
    command: str  # command line, shell-quoted
    python_version: Version | None
    binary_path: str  # open this for the probes: it leads to the mapped file even when that was deleted
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
        return Memory(self.pid)

    @property
    def version_text(self) -> str | None:
        """The Python version, for example 3.11.2."""
        return ".".join(map(str, self.python_version)) if self.python_version else None

    @property
    def library(self) -> str:
        """The usual place of its standard library."""
        minor = ".".join(map(str, (self.python_version or (3, 0))[:2]))
        return str(Path(self.executable).parent.parent / "lib" / f"python{minor}")

    def forked(self, pid: int, tid: int) -> "Target":
        """The child `pid` that its thread `tid` has just forked: a copy, which may not have run yet."""
        return replace(
            self,
            pid=pid,
            ppid=self.pid,
            binary_path=self.binary_path.replace(f"/proc/{self.pid}/", f"/proc/{pid}/", 1),
            threads=(pid,),
            copied_id=own_id(self.pid, tid),
        )

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
            first, end = self.layout.runtime_gil
            return self.runtime + first, self.runtime + end
        try:
            interpreter = self.memory.u64(self.runtime + self.layout.runtime_main_interpreter)
            gil = self.memory.u64(interpreter + (self.layout.interpreter_gil or 0))
        except MemoryFault:
            return 0, 0
        return (gil, gil + _GIL_SIZE) if gil else (0, 0)


def inspect(pid: int) -> Target:
    """Look at process `pid`.

    Raises TargetError (one sentence) when there is no such process, when it is not a Python, a kernel thread, a
    zombie, or ends meanwhile; HostError when this user may not look into it.
    """
    try:
        return _inspect(pid)
    except (FileNotFoundError, ProcessLookupError, MemoryFault):
        raise TargetError(f"process {pid} does not exist, or ended while it was looked at") from None
    except PermissionError:
        raise HostError(f"process {pid} may not be inspected by this user; run the command as root (sudo)") from None


def links_libpython(pid: int) -> bool:
    """Whether the program of `pid` names a libpython that its loader is to map."""
    try:
        with Path(f"/proc/{pid}/exe").open("rb") as file:
            return any(_LIBPYTHON.search(name) for name in _once(file, needed, _needed))
    except OSError:
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


def _inspect(pid: int) -> Target:
    status = _status(pid)
    _refuse_what_has_no_program(pid, status)
    executable = str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
    mappings = read_mappings(pid)
    path, name, binary = _interpreter(pid, executable, mappings)
    bias = load_bias(binary, [m for m in mappings if m.path == name])
    runtime = binary.runtime_vaddr + bias if binary.runtime_vaddr else None
    version = binary.version
    return Target(
        pid=pid,
        ppid=int(status["PPid"]),
        executable=executable,
        command=command_line(pid),
        python_version=version,
        binary_path=path,
        binary_name=name,
        binary=binary,
        bias=bias,
        runtime=runtime,
        layout=layout_for(version, binary.debug_offsets) if version else None,
        free_threaded=is_free_threaded(binary.debug_offsets),
        jit=version is not None and version >= (3, 13) and _environment(pid, "PYTHON_JIT") not in ("", "0"),
        in_container=any(_namespace(pid, kind) != _namespace("self", kind) for kind in ("pid", "mnt")),
        threads=threads(pid),
    )


def _namespace(pid: int | str, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _refuse_what_has_no_program(pid: int, status: dict[str, str]) -> None:
    if status["Tgid"] != str(pid):
        raise TargetError(f"{pid} is a thread of process {status['Tgid']}; give that number instead")
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if int(stat[6]) & _KERNEL_THREAD:
        raise TargetError(f"process {pid} ({status['Name']}) is a thread of the kernel, not a Python")
    if stat[0] in "ZX":
        raise TargetError(
            f"process {pid} ({status['Name']}) has already ended and only waits for its parent (a zombie)"
        )


def read_mappings(pid: int) -> list[Mapping]:
    """The file-backed mappings of a process, by address."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines():
        span, permissions, offset, _device, inode, *rest = line.split(maxsplit=5)
        if rest and inode != "0":
            start, _, end = span.partition("-")
            path = rest[0]
            found.append(
                Mapping(
                    start=int(start, 16),
                    end=int(end, 16),
                    offset=int(offset, 16),
                    executable="x" in permissions,
                    inode=int(inode),
                    path=path.removesuffix(" (deleted)"),
                    deleted=path.endswith(" (deleted)"),
                )
            )
    return found


def _interpreter(pid: int, executable: str, mappings: list[Mapping]) -> tuple[str, str, Binary]:
    """(path to open, name, parsed) of the mapped file that holds the interpreter: the program or its libpython."""
    path = f"/proc/{pid}/exe"
    try:
        binary = parse(path)
    except ValueError as error:
        raise TargetError(f"process {pid} runs {executable}, which cannot be traced: {error}") from None
    if binary.symbol("Py_GetVersion"):
        return path, executable, binary
    for mapping in mappings:
        if mapping.executable and _LIBPYTHON.search(mapping.path):
            path = mapped_file(pid, mapping)
            return path, mapping.path, parse(path)
    raise TargetError(f"process {pid} runs {executable}, which is not a Python")


_Identity = tuple[int, int, int, int]
_parsed: dict[_Identity, Binary] = {}  # a handful of interpreters and C libraries, for any number of processes
_needed: dict[_Identity, tuple[str, ...]] = {}


def _once(file: BinaryIO, read: Callable[[BinaryIO], Said], known: dict[_Identity, Said]) -> Said:
    status = os.fstat(file.fileno())
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if identity not in known:
        known[identity] = read(file)
    return known[identity]


def parse(path: str) -> Binary:
    """The ELF file at `path`, parsed once. Raises OSError, and ValueError with one sentence for what is none."""
    with Path(path).open("rb") as file:
        return _once(file, read_binary, _parsed)


def mapped_file(pid: int, mapping: Mapping) -> str:
    """A path that opens the file behind a mapping; a name on disk only where that is the same file.

    Raises PermissionError where there is none for this user, FileNotFoundError where it is not mapped any more.
    """
    exact = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
    try:
        Path(exact).stat()  # needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE
        return exact
    except PermissionError:
        # A chroot's paths are given from the tracer's root, a container's from its own.
        for named in (f"/proc/{pid}/root{mapping.path}", mapping.path):
            if not mapping.deleted and Path(named).exists() and Path(named).stat().st_ino == mapping.inode:
                return named
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


def command_line(pid: int) -> str:
    """A process's command line, shell-quoted. Raises OSError when it is gone."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    return shlex.join(word.decode(errors="replace") for word in words)


def _environment(pid: int, name: str) -> str:
    """A variable of the environment the program was started with, "" where it is not set."""
    for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        key, _, value = line.partition(b"=")
        if key == name.encode():
            return value.decode(errors="replace")
    return ""
