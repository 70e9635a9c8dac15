"""What the process without rights can be asked about a target: its TASKS. See sandbox.py.

To have something else parsed there, add a function of (what was given, descriptors) to them: it gives back JSON values,
as shape.encode() makes them, raises ValueError with one sentence, and imports nothing when it is called.
"""

import os
from collections.abc import Callable
from typing import Any, BinaryIO

from pytrace_ebpf.record.cpython import frames, lines, loaded, running_tasks, thread_names
from pytrace_ebpf.record.dump import objects
from pytrace_ebpf.record.identity import node, published
from pytrace_ebpf.record.parsing import beginnings, disassembly, elf, elf_file, source_index
from pytrace_ebpf.record.parsing.shape import encode

_MOST_SECTION = 1024  # bytes of one whose contents are asked for


def file_of(descriptor: int) -> BinaryIO:
    """The file behind a descriptor, from its beginning; the descriptor stays open."""
    return os.fdopen(descriptor, "rb", closefd=False)


def _binary(_: dict[str, Any], files: list[int]) -> Any:
    return encode(elf.read_binary(file_of(files[0])))


def _needed(_: dict[str, Any], files: list[int]) -> Any:
    return encode(elf.needed(file_of(files[0])))


def _beginnings(given: dict[str, Any], files: list[int]) -> Any:
    return beginnings.beginnings(file_of(files[0]), given["names"])


def _section(given: dict[str, Any], files: list[int]) -> Any:
    file = elf_file.ElfFile(file_of(files[0]))
    return encode(file.read_section(file.section(given["name"]))[:_MOST_SECTION])


disassembly.disassembler()  # a library, which cannot be loaded any more when it is needed
TASKS: dict[str, Callable[[dict[str, Any], list[int]], Any]] = {
    "beginnings": _beginnings,
    "binary": _binary,
    "container": node.read_container,
    "loaded_functions": loaded.walk_loaded,
    "needed": _needed,
    "objects": objects.walk_objects,
    "open_frames": frames.walk_frames,
    "published": published.walk_published,
    "read_codes": frames.walk_codes,
    "read_lines": lines.walk_lines,
    "running_tasks": running_tasks.walk_running_tasks,
    "section": _section,
    "source": source_index.read,
    "thread_names": thread_names.walk_names,
}
