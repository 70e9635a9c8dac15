"""Assigns the libraries that a process has mapped to native layers, by their names."""

import os
import re

from pytrace_ebpf.record.kernel import memory_map
from pytrace_ebpf.trace.layers import NATIVE

CPP, C10 = re.compile(r"libstdc\+\+\.so[\d.]*"), re.compile(r"libc10\.so")
PATTERNS = {layer.name: re.compile(layer.libraries) for layer in NATIVE}
WHAT = {layer.name: layer.loaded for layer in NATIVE}


def mapped_libraries(pid: int) -> set[str]:
    """Paths of the shared libraries that a process has mapped, as it sees them itself; none where it has ended."""
    try:
        lines = memory_map.read(pid, "maps").splitlines()
    except OSError:
        return set()
    paths = {line[line.index(b"/") :] for line in lines if b".so" in line and b" r-xp " in line and b"/" in line}
    return {os.fsdecode(path) for path in paths if not path.endswith(b" (deleted)")}


def layers_of(paths: set[str]) -> dict[str, list[str]]:
    """The libraries among `paths` of each layer, sorted; layers that have none are left out."""
    found = {layer: sorted(path for path in paths if pattern.fullmatch(path.rpartition("/")[2])) for layer, pattern in PATTERNS.items()}
    return {layer: those for layer, those in found.items() if those}
