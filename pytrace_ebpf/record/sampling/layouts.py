"""A version of CPython as samples.c knows it: struct sample_layout."""

from pytrace_ebpf.record.cpython.frames import HEAD_BEFORE_MAIN, LAST_USED
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import HASH
from pytrace_ebpf.record.usdt.probes import frame_layout

_ABSENT = -(1 << 31)
_LAYOUT = (
    "interpreter_threads",
    "thread_next",
    "thread_pthread",
    "thread_frame",
    "thread_datastack",
    "cframe_frame",
    "code_file",
    "code_name",
    "code_bytes",
)
_OF_INTERPRETERS = ("interpreter_next", "interpreter_gil", "thread_interpreter")
# Of struct task_layout, in tasks.h.
_TASK_LAYOUT = (
    "thread_task", "task_coro", "task_name", "generator_frame", "string_length", "string_state", "string_data", "string_data_wide", "code_start",
)  # fmt: skip


def described(layout: Layout) -> tuple[object, ...]:
    """A Python's struct sample_layout."""
    running, values = layout.frame_running or (_ABSENT, b"")
    ends = [layout.frame_previous + 8, layout.frame_code + 8, layout.frame_position + 8, (layout.frame_owner or 0) + 1, running + 1]
    offsets = {name: _ABSENT if (value := getattr(layout, name)) is None else value for name in (*_LAYOUT, *_TASK_LAYOUT, *_OF_INTERPRETERS)}
    return (
        frame_layout(layout),
        (*(offsets[name] for name in _TASK_LAYOUT), 0),
        max(ends),
        running,
        sum(1 << value for value in values),
        *(offsets[name] for name in _LAYOUT),
        layout.position_unit,
        layout.version >= (3, 12),
        layout.string_length + HASH,
        (layout.frame_owner or 0) - 1 if layout.version == (3, 11) else _ABSENT,  # is_entry stands before owner
        *(offsets[name] for name in _OF_INTERPRETERS),
        *((0, 0, 0) if layout.thread_status is None else (layout.thread_status, LAST_USED, HEAD_BEFORE_MAIN)),
    )
