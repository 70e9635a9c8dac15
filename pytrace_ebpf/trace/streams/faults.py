"""The stream of page faults and of how the resident memory grows: `--faults`."""

from pytrace_ebpf.trace.shape import WHOLE, Fields
from pytrace_ebpf.trace.stream import Counter, Loss, Option, Stream
from pytrace_ebpf.trace.table import PID, TID, Column, Table

MINOR, MAJOR, GROWN = FAULT_KINDS = (0, 1, 2)  # as in probes/events.h

FAULTS = Table(
    "faults",
    "One row per page fault, and per change of a process's resident memory (`--faults`).",
    (),
    (
        Column("ts", "int64", "ns", "when"),
        PID,
        TID,
        Column(
            "kind",
            "int8",
            "",
            "0 minor: a page was put in place; 1 major: it had to be read from a file or from swap; 2 the resident memory changed, by a fault or by giving memory back",
        ),
        Column("grown_bytes", "int64", "bytes", "2: by so much, below 0 where it became less, with what the kernel took back meanwhile; else 0"),
    ),
)
STREAM = Stream(
    "faults",
    Option("record page faults and how the resident memory grows, for report --by memory: 0.3 us for each page that the program touches first"),
    users=True,
    tables=(FAULTS,),
    losses=(
        Loss(
            "fault_ring",
            12,
            "page fault or change of the resident memory",
            "page faults and changes of the resident memory",
            "not in any function's sums",
        ),
    ),
    recorder="pytrace_ebpf.record.scheduling.faults.Faults",
    rings={"faults": 16 << 20},  # 400,000 page faults
    needs_ebpf="page faults are counted in the kernel",
    metadata={"faults": Fields({"growth": WHOLE})},
    report="pytrace_ebpf.view.memory",
    counters=(Counter(FAULTS.name, "grown_bytes", "resident memory", resident=True),),
)
