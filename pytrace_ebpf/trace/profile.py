"""The table of what is always sampled as data, a part of trace/schema.py."""

from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.table import PID, Column, Table

NO_FRAMES, UNREAD, RARE = -1, -2, -3
"""Of `node_id`, what is no node of the tree: see there."""
SQUARES = ("total_square", *(name.replace("_ns", "_square") for name in SPLIT[1:]))

PROFILE = Table(
    "profile",
    "The calling-context tree of a process in a window of about 10 s, from sampled stacks (`pytrace-ebpf daemon`): one row per node, a caller before its callees. "
    "All figures are of the node itself, without what it called: rows add up, over windows and processes too. "
    "Time off the core counts whole in the window in which it ended. Where a trace has this table it has no samples.",
    (),
    (
        Column("start_ns", "int64", "ns", "when the window began"),
        Column("end_ns", "int64", "ns", "when it ended"),
        PID,
        Column(
            "node_id",
            "int32",
            "",
            "its number, unique in the window; -1 the process ran no Python, and no native frame is known; -2 the stack could not be read; "
            "-3 the rarest stacks of the window, which had too many",
        ),
        Column("parent_id", "int32", "", "the caller's number; -1 none"),
        Column("func_id", "int32", "", "joins functions; -1 unknown"),
        Column("line", "int32", "", "of the instruction that it was at; -1 unknown, or native code"),
        Column("samples", "int32", "", "of threads on a core"),
        Column("off_samples", "int32", "", "of threads that came back to a core"),
        Column("missed", "int64", "", "ticks of the cores' clocks that did not come, for which the samples on a core stand too"),
        *(Column(name, "int64", "ns", f"time that the samples stand for: {name.removesuffix('_ns')}, as in calls") for name in SPLIT),
        Column("unknown_ns", "int64", "ns", "time off the core of which it is not known what the thread waited for; not part of the four"),
        *(
            Column(
                name,
                "float64",
                "ns^2",
                f"variance of the {'four off the core together' if name == 'total_square' else name.replace('_square', '_ns')}, as far as samples off the core have it",
            )
            for name in SQUARES
        ),
    ),
)

PROFILE_WAITS = Table(
    "profile_waits",
    "What threads waited for in a window of `profile`, from sampled stacks: one row per process, kind, resource and function. All figures add up, over windows and processes too.",
    (),
    (
        Column("start_ns", "int64", "ns", "when the window began"),
        Column("end_ns", "int64", "ns", "when it ended"),
        PID,
        Column("kind", "dictionary of string", "", "as in waits; and run queue: runnable without a core, unknown: nothing says what for"),
        Column("syscall", "dictionary of string", "", "name of the system call; null for none, and where it is not known", nullable=True),
        Column(
            "resource",
            "string",
            "",
            "what was behind the descriptor, in words: postgres 10.0.0.7:5432, /var/lib/app/log; null for none, and where it is not known",
            nullable=True,
        ),
        Column("primitive_func_id", "int32", "", "function of threading, queue and the like that the program called to wait, joins functions; -1 none"),
        Column("func_id", "int32", "", "innermost function of the program's own code, else the innermost that is none of such a library's, joins functions; -1 none"),
        Column("samples", "int32", "", "of threads that came back to a core"),
        Column("total_ns", "int64", "ns", "time that these stand for"),
        Column("total_square", "float64", "ns^2", "variance of it"),
    ),
)  # fmt: skip
