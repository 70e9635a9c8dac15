"""The table of what was left out on purpose while recording, so that the program is not slowed more than was allowed."""

from pytrace_ebpf.trace.table import Column, Table

BUDGET, INTERVAL = WHY = ("budget", "interval")

LEFT_OUT = Table(
    "left_out",
    "One row per time in which a function was left out to keep a bound on the cost (--budget, or what `--source auto` may take). Between from_ns and to_ns calls of it may be missing, at other times none is. Their time is their callers' own, so that all sums hold.",
    ("func_id", "from_ns"),
    (
        Column("func_id", "int32", "", "joins functions; -1 every function"),
        Column(
            "from_ns",
            "int64",
            "ns",
            "no call of it is missing before. Where the innermost calls of a thread are of it they end then, and what they do from there on is their caller's",
        ),
        Column("to_ns", "int64", "ns", "nor after; null while it is left out, to the end of the recording", True),
        Column("calls_per_s", "float64", "", "calls a second that it had just before, all threads together"),
        Column(
            "why",
            "string",
            "",
            "budget: its calls were those that cost most; interval: everything was, since its functions one by one were not enough",
        ),
    ),
)
