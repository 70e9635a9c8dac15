"""Where functions of the target's libraries lie in its memory, and where a few bytes of its memory are unused."""

import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytrace_ebpf import processors
from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import Mapping as FileMapping
from pytrace_ebpf.record.process.target import Target, load_bias, mapped_file, parse, parse_mappings

_PAGE = mmap.PAGESIZE
_LIBC = re.compile(r"/libc(-[\d.]+)?\.so[^/]*$")
_LIBDL = re.compile(r"/libdl(-[\d.]+)?\.so[^/]*$")
_LOADER = re.compile(r"/ld-[^/]*$")
_MOST_CODE = 1 << 20
_LOAD, _WRITABLE = 1, 2


@dataclass(frozen=True)
class Loader:
    """What it takes to load a library in the target."""

    dlopen: int
    is_new: bool  # 2.34 or later
    sigreturn: int  # libc's code of rt_sigreturn, or the vDSO's
    code: tuple[tuple[int, int], ...]  # of the dynamic loader
    locks: tuple[tuple[int, int], ...]  # memory of the dynamic loader and of libc, where their locks are


def loader(target: Target) -> Loader:
    """Find it.

    Raises TargetError for a program without glibc or whose memory cannot be read, PermissionError where its files may not be read, ProcessLookupError
    where it has ended.
    """
    mappings = parse_mappings(target.process.read("maps"))
    libc = [m for m in mappings if _LIBC.search(m.path)]
    if not libc:
        raise TargetError(
            f"process {target.pid} runs without glibc (musl, or linked statically), so no agent can be loaded into it; "
            "where it can be started anew on a glibc Python, use `pytrace-ebpf run`"
        )
    symbols = _symbols(target, libc)
    old = _symbols(target, [m for m in mappings if _LIBDL.search(m.path)])
    dlopen = symbols.get("dlopen") or old.get("dlopen") or symbols.get("__libc_dlopen_mode")
    if dlopen is None:
        raise TargetError(f"the libc of process {target.pid} has no dlopen, so no agent can be loaded into it")
    linker = [m for m in mappings if _LOADER.search(m.path)]
    images = [m.start for m in linker + libc if m.offset == 0]
    return Loader(
        dlopen=dlopen,
        is_new="pthread_create" in symbols,
        sigreturn=_sigreturn(target, libc),
        code=tuple((m.start, m.end) for m in linker if m.executable),
        locks=tuple((image, _up(end)) for image in images for end in _data_ends(target.memory, image)),
    )


def agent_functions(target: Target, library: Descriptor) -> Mapping[str, int] | None:
    """Addresses of the agent's functions, where the target holds the same library already from an earlier session."""
    binary = parse(library)
    content = os.pread(library.fileno(), os.fstat(library.fileno()).st_size, 0)
    for mapping in parse_mappings(target.process.read("maps")):
        if not mapping.executable or not mapping.path.endswith("/agent.so"):
            continue
        segment = next((s for s in binary.segments if s.executable and s.offset // _PAGE * _PAGE == mapping.offset), None)
        if segment is None:
            continue
        bias = mapping.start - segment.vaddr // _PAGE * _PAGE
        code = content[segment.offset : segment.offset + segment.file_size]
        try:
            same = target.memory.read(bias + segment.vaddr, len(code)) == code
        except MemoryFault:
            continue
        if same:
            return {name: bias + value for name, value in binary.symbols.items()}
    return None


def is_loaded(target: Target, inode: int) -> bool:
    """Whether the target has an agent.so with that inode mapped; of its device an overlay file system shows another one there."""
    return any(m.inode == inode and m.path.endswith("/agent.so") for m in parse_mappings(target.process.read("maps")))


def spare_memory(target: Target, size: int) -> int:
    """The address of `size` bytes that nothing in the target uses: zeros behind a library's data, to the page's end.

    They outlive every stack frame and need no memory to be allocated. Raises TargetError where there are none, ProcessLookupError where it has ended.
    """
    memory, mappings = target.memory, parse_mappings(target.process.read("maps"))
    if not mappings:
        raise ProcessLookupError(f"process {target.pid} has ended")
    rooms = [
        (_up(end) - end, end)
        for mapping in mappings
        if mapping.offset == 0 and not _LOADER.search(mapping.path)  # the loader allocates in its own
        for end in _data_ends(memory, mapping.start)
    ]
    for room, end in sorted(rooms, reverse=True):
        try:
            # Behind the strings of tracers that were killed, whose pending call may still come.
            at = memory.read(end, room).find(bytes(size + 1))
        except MemoryFault:
            continue
        if at >= 0:
            return end + at + 1
    raise TargetError(f"process {target.pid} has no spare memory for a pending call")


def _data_ends(memory: Memory, image: int) -> Iterator[int]:
    """Where the writable segment of the library mapped at `image` ends."""
    try:
        header = memory.read(image, 64)
        if header[:4] != b"\x7fELF":
            return
        table, count = struct.unpack_from("<Q", header, 32)[0], struct.unpack_from("<H", header, 56)[0]
        for at in range(count):
            kind, flags, _, vaddr, _, _, size = struct.unpack("<IIQQQQQ", memory.read(image + table + at * 56, 48))
            if kind == _LOAD and flags & _WRITABLE:
                yield image + vaddr + size
    except MemoryFault:
        return


def _symbols(target: Target, mappings: list[FileMapping]) -> dict[str, int]:
    """Addresses of a mapped library's symbols; {} where it is not mapped."""
    code = next((m for m in mappings if m.executable), None)
    if code is None:
        return {}
    try:
        binary = parse(mapped_file(target.process, code))
    except ValueError as error:
        raise TargetError(f"{code.path} of process {target.pid} cannot be read: {error}") from None
    bias = load_bias(binary, [code])
    return {name: bias + value for name, value in binary.symbols.items()}


def _sigreturn(target: Target, libc: list[FileMapping]) -> int:
    """Where the code is by which signal handlers return."""
    here = processors.here()
    where, spans = "libc", [(m.start, m.end) for m in libc if m.executable]
    if here.sigreturn_in_vdso:
        where, spans = "vDSO", _vdso(target.process.read("maps"))
    try:
        for first, end in spans:
            for start in range(first, end, _MOST_CODE - 16):
                found = here.sigreturn.search(target.memory.read(start, min(_MOST_CODE, end - start)))
                if found:
                    return start + found.start()
    except MemoryFault as fault:
        if not target.process.read("maps"):
            raise ProcessLookupError(f"process {target.pid} has ended") from None
        raise TargetError(f"the {where} of process {target.pid} cannot be read, so no agent can be loaded into it: {fault}") from None
    raise TargetError(f"the {where} of process {target.pid} is not one that an agent can be loaded with (no rt_sigreturn in it)")


def _vdso(maps: bytes) -> list[tuple[int, int]]:
    return [(int(start, 16), int(end, 16)) for start, end in re.findall(rb"^([0-9a-f]+)-([0-9a-f]+) .*\[vdso\]$", maps, re.MULTILINE)]


def _up(address: int) -> int:
    return -(-address // _PAGE) * _PAGE
