"""The tables of sums as data, a part of trace/schema.py: time by calling context and by thread."""

from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.table import PID, TID, Column, Table


def _sums(prefix: str, of: str) -> tuple[Column, ...]:
    """Columns of the time of several calls."""
    whole = f"{prefix or 'total_'}ns"
    nulls = (
        "null where none is known",
        *[f"null where none is known, or where {prefix}on_cpu_ns of some call is known and this is not"] * (len(SPLIT) - 1),
    )
    parts = zip(SPLIT, nulls, strict=True)
    return (
        Column(whole, "int64", "ns", of),
        *(Column(prefix + part, "int64", "ns", f"of {whole}, as calls has it; {null}", True) for part, null in parts),
        Column(f"{prefix}unknown_ns", "int64", "ns", f"of {whole}, that of calls whose scheduling is not known: not part of the four"),
    )


TREE = Table(
    "tree",
    "The calling-context tree: one row per thread, and one for each function by the functions it was called through from there; a caller before its callees. Derived from the other tables and rebuildable. Of a program with more contexts than the tree may have rows, the calls of further ones stand in a row of their function alone, without a thread.",
    (),
    (
        Column("node_id", "int32", "", "its place in the tree"),
        Column("parent_id", "int32", "", "the caller's row; -1 none"),
        Column(
            "depth",
            "int32",
            "",
            "0 = outermost; -1 for a thread's own row, whose total_ns and four parts are those of its outermost calls, and which has no calls",
        ),
        Column("pid", "int32", "", "process id; -1 for a row of a function alone"),
        Column("tid", "int32", "", "thread id; -1 likewise"),
        Column("func_id", "int32", "", "joins functions; -1 unknown, and in a thread's own row"),
        Column(
            "outermost",
            "bool",
            "",
            "no caller above is of the same function: the total times of such rows add up without counting recursion twice",
        ),
        Column("outermost_of_module", "bool", "", "no caller above is of the same module"),
        Column("calls", "int64", "", "how many"),
        *_sums("", "their wall_ns"),
        *_sums("self_", "their self_wall_ns"),
    ),
    derived=True,
)

CALL_SITES = Table(
    "call_sites",
    "One row per place that a function was called from: the calling function, its line, and the function called; derived from the other tables and rebuildable. Calls that no call made, and those of native layers, are not told apart by line.",
    (),
    (
        Column("caller_id", "int32", "", "the calling function, joins functions; -1 none or unknown"),
        Column("call_line", "int32", "", "its line, as in calls; null not known", True),
        Column("func_id", "int32", "", "the function called, joins functions; -1 unknown"),
        Column("calls", "int64", "", "how many"),
        *_sums("", "wall_ns of those that are not within another call from this place: recursion counts once"),
        Column("self_ns", "int64", "ns", "self_wall_ns of all of them"),
    ),
    derived=True,
)

LINES = Table(
    "lines",
    "One row per function and line that it came to, of the functions whose lines were recorded (`--lines exact`); derived from the other tables and rebuildable. A function's self times add up to its own. What a call did before its first line counts for the line of its `def`.",
    (),
    (
        Column("func_id", "int32", "", "joins functions"),
        Column(
            "line", "int32", "", "-1 unknown: where a debugger or coverage of the program's own took over (up to Python 3.11), or events were lost"
        ),
        Column("hits", "int64", "", "how often the interpreter came to it: as sys.settrace counts"),
        *_sums("", "time from there to the next line or the end, with what was called; recursion to the same line counts once"),
        *_sums("self_", "the same without what was called"),
    ),
    derived=True,
)

THREAD_TIMES = Table(
    "thread_times",
    "One row per thread: where its time within the recording went, inside of calls and outside; derived from the other tables and rebuildable.",
    (),
    (
        PID,
        TID,
        Column("calls", "int64", "", "how many it made"),
        Column("known_ns", "int64", "ns", "time of which it is known whether it had a core: the four parts, where these are known separately"),
        *(
            Column(name, "int64", "ns", "of known_ns, as in calls; null where nothing is known, or only as a whole what is off the core", True)
            for name in SPLIT
        ),
    ),
    derived=True,
)
