"""Where CPython's structures keep what the tracer reads: one Layout of byte offsets per minor version, x86-64.

They stand in probes/cpython_offsets.h, which is the agent's too. From 3.13 on a process carries its own table, _Py_DebugOffsets
at the start of _PyRuntime, which is right for every build and is taken where it is there.
"""

import re
import struct
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from pytrace_ebpf.record.kernel.probe_sources import probes_directory

_COOKIE = b"xdebugpy"
_LARGEST = 1 << 20  # of an offset: no structure is larger, so a larger one in a file is wrong

_DEBUGGER = "debugger_support"
_FREE_THREADED = "CPYTHON_FREE_THREADED"

_Column = dict[str, int | None]  # what stands in one version's column, by field


@dataclass(frozen=True)
class Layout:
    """Byte offsets within each structure, as probes/cpython_offsets.h explains them; None for a field that the version does not have."""

    version: tuple[int, int]
    # _PyRuntimeState
    runtime_main_interpreter: int
    runtime_initialized: int
    runtime_gil: tuple[int, int] | None  # first and last byte + 1 of the GIL's locks, up to 3.11
    # the GIL, or what takes its place where there is none
    gil_holder: int
    runtime_world: int | None
    interpreter_world: int | None
    thread_attached: int | None
    object_type: int
    # PyInterpreterState
    interpreter_next: int | None
    interpreter_threads: int
    interpreter_gil: int | None
    interpreter_modules: int
    # PyThreadState
    thread_next: int
    thread_interpreter: int | None
    thread_status: int | None
    thread_pthread: int
    thread_native_id: int | None
    thread_frame: int
    thread_datastack: int | None
    thread_exception: int | None
    thread_task: int | None
    cframe_frame: int | None
    # PyFrameObject up to 3.10, then _PyInterpreterFrame
    frame_previous: int
    frame_code: int
    frame_running: tuple[int, bytes] | None  # a byte and its values while the frame is on a stack, up to 3.10
    frame_stacktop: int | None
    frame_position: int
    frame_copy: int | None
    frame_owner: int | None
    owner_shim: int
    frame_locals: int
    frame_top: int | None
    frame_globals: int
    frame_blocks: int | None
    frame_suspended: int
    return_opcode: int | None
    # PyCodeObject
    code_file: int
    code_name: int
    code_qualname: int | None
    code_first_line: int
    code_flags: int
    code_start: int | None
    code_copies: int | None
    code_bytes: int | None
    code_lines: int
    code_arguments: int
    code_keyword_only: int
    code_locals: int | None
    code_variables: int
    code_kinds: int | None
    code_cells: int | None
    code_cell_arguments: int | None
    code_stack: int
    code_names: int
    code_free: int | None
    code_exceptions: int | None
    tuple_items: int
    # what shows that a generator yields when its probe fires, where frame_stacktop does not
    generator_state: int | None
    yield_opcode: int | None
    # PyHeapTypeObject
    type_cached_keys: int
    # asyncio's tasks, and the coroutines that they run
    thread_tasks: int | None
    interpreter_tasks: int | None
    task_node: int | None
    task_coro: int
    task_name: int
    generator_frame: int
    # str
    string_length: int
    string_state: int
    string_kind: int
    string_data: int
    string_data_wide: int

    @property
    def position_unit(self) -> int:
        """Bytes per unit of a frame's position: 3.10 counts instructions, all others bytes."""
        return 2 if self.version == (3, 10) else 1


@cache
def _columns(table: str) -> dict[tuple[int, int], _Column]:
    """A table of probes/cpython_offsets.h, by version."""
    text = (probes_directory() / "cpython_offsets.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define (CPYTHON_\w+) (\d+)\b", text)}
    which = table.partition(_FREE_THREADED)[1] or "CPYTHON"
    versions = range(numbers[f"{which}_FIRST"], numbers[f"{which}_LAST"] + 1)
    columns: dict[tuple[int, int], _Column] = {(3, minor): {} for minor in versions}
    for field, row in re.findall(r"OFFSET\((\w+), *([^)]*)\)", text.partition(f"#define {table}(OFFSET)")[2].partition("\n\n")[0]):
        for column, value in zip(columns.values(), row.split(","), strict=True):
            column[field] = None if value.strip() == "NONE" else int(value)
    return columns


@cache
def _layouts(free_threaded: bool) -> dict[tuple[int, int], Layout]:
    columns = _columns("CPYTHON_OFFSETS")
    if free_threaded:
        columns = {version: columns[version] | column for version, column in _columns(f"{_FREE_THREADED}_OFFSETS").items()}
    return {version: _layout(version, column) for version, column in columns.items()}


def _layout(version: tuple[int, int], column: _Column) -> Layout:
    values: dict[str, Any] = {field.name: column[field.name] for field in fields(Layout) if field.name != "version"}
    if column["runtime_gil"] is not None:
        values["runtime_gil"] = column["runtime_gil"], column["runtime_gil_end"]
    if column["frame_running"] is not None and column["running_values"] is not None:
        values["frame_running"] = column["frame_running"], bytes(value for value in range(8) if column["running_values"] >> value & 1)
    return Layout(version=version, **values)


def table_layout(version: tuple[int, ...], free_threaded: bool) -> Layout | None:
    """The layout of builds of a Python version, with a GIL or without, as the table has it; None for one that is not known."""
    return _layouts(free_threaded).get((version[0], version[1]))


def layout_for(version: tuple[int, ...], debug_offsets: bytes = b"") -> Layout | None:
    """The layout of a Python version (its first two numbers count), None for one that is not known.

    `debug_offsets`: the first 1024 bytes of the process's _PyRuntime; where they are _Py_DebugOffsets they win.
    """
    minor = version[0], version[1]
    layout = table_layout(version, is_free_threaded(debug_offsets))
    if layout is None or not debug_offsets.startswith(_COOKIE):
        return layout
    positions = {name: position for name, position in _columns("CPYTHON_DEBUG_OFFSETS")[minor].items() if position is not None and name != _DEBUGGER}
    at = {name: int(struct.unpack_from("<Q", debug_offsets, position)[0]) for name, position in positions.items()}
    if not at or max(at.values()) > _LARGEST:
        return layout
    head, argcount, gil, holder = (at.pop(name) for name in ("runtime_interpreters_head", "code_argcount", "interpreter_own_gil", "gil_last_holder"))
    return replace(
        layout,
        **at,  # type: ignore[arg-type]
        runtime_main_interpreter=head + 8,  # `main` follows `head`
        runtime_initialized=head - 32,  # seven fields lie between
        gil_holder=holder - gil,
        code_flags=argcount - 4,  # co_flags is just before co_argcount
        code_arguments=argcount,
        string_data_wide=at["string_data"] + 16,  # the UTF-8 copy's length and pointer lie between
    )


def with_task_offsets(layout: Layout, section: bytes) -> Layout:
    """`layout` with what the section .AsyncioDebug says, of the file that `_asyncio` is in; without one (b"") as it is."""
    positions = {name: position for name, position in _columns("CPYTHON_TASK_OFFSETS")[layout.version].items() if position is not None}
    if not positions or len(section) < max(positions.values()) + 8:
        return layout
    at = {name: int(struct.unpack_from("<Q", section, position)[0]) for name, position in positions.items()}
    return replace(layout, **at) if max(at.values()) <= _LARGEST else layout  # type: ignore[arg-type]


def debugger_support(version: tuple[int, ...] | None) -> int | None:
    """Where _Py_DebugOffsets has the offsets of the debugger's interface (PEP 768), None for a version without it."""
    known = _columns("CPYTHON_DEBUG_OFFSETS").get((version[0], version[1])) if version else None
    return known[_DEBUGGER] if known else None


def known_versions() -> str:
    """The versions that have a layout, such as "3.8 to 3.15, without a GIL 3.13 to 3.14"."""
    with_gil, without = (" to ".join(".".join(map(str, end(_layouts(kind)))) for end in (min, max)) for kind in (False, True))
    return f"{with_gil}, without a GIL {without}"


def is_free_threaded(debug_offsets: bytes) -> bool:
    """Whether _Py_DebugOffsets (or b"") are those of a build without a GIL."""
    return debug_offsets.startswith(_COOKIE) and struct.unpack_from("<Q", debug_offsets, 16)[0] != 0
