"""The stream of what Python's allocators hand out and take back: `--memory`."""

from pytrace_ebpf.trace.stream import Counter, Loss, Option, Stream
from pytrace_ebpf.trace.table import PID, TID, Column, Table

ALLOCATIONS = Table(
    "allocations",
    "One row per event of a thread after which its Python memory changed (`--memory`): what was allocated and freed until its next event.",
    (),
    (
        Column("ts", "int64", "ns", "when that event was"),
        PID,
        TID,
        Column("blocks", "int64", "", "allocated; one that is resized counts as freed and allocated"),
        Column("bytes", "int64", "bytes", "of these blocks"),
        Column(
            "freed_blocks",
            "int64",
            "",
            "of those that were allocated and freed, whenever, while the call was open that is innermost here, and not while one below it was",
        ),
        Column("freed_bytes", "int64", "bytes", "of these blocks"),
        Column("level_bytes", "int64", "bytes", "growth of all that the thread has allocated since recording began and that is not freed"),
        Column("peak_bytes", "int64", "bytes", "the most that this growth was in between; 0 where it never grew"),
    ),
    weight=2,
)
_WHAT = "what Python's allocators did between two events"
STREAM = Stream(
    "memory",
    Option("record what Python's allocators hand out and take back as well, and with eBPF what --faults does, for report --by memory (agent)"),
    users=True,
    tables=(ALLOCATIONS,),
    losses=(Loss("allocation_ring", 13, f"sum of {_WHAT}", f"sums of {_WHAT}", "not in any function's sums"),),
    needs_agent="only the agent can stand before Python's allocators; --faults goes with it",
    prefers_agent=True,
    brings=("faults",),
    report="pytrace_ebpf.view.memory",
    counters=(Counter(ALLOCATIONS.name, "level_bytes", "allocated by Python"),),
)
