"""The tables of memory as data, a part of trace/schema.py: page faults, and what functions used."""

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


def _of_function(name: str, unit: str, meaning: str, null: str) -> tuple[Column, Column]:
    return (
        Column(
            name, "int64", unit, f"{meaning}, in those of its calls that are not within another call of it, with all that they call; {null}", True
        ),
        Column(f"self_{name}", "int64", unit, "the same, in all of its calls, without the calls below", True),
    )


MEMORY = Table(
    "memory",
    "One row per function: what memory its calls used; derived from the other tables and rebuildable. Of faults and growth, those of the thread that the call is on.",
    (),
    (
        Column("func_id", "int32", "", "joins functions; -1 unknown"),
        Column("calls", "int64", "", "how many"),
        *_of_function("minor_faults", "", "page faults for which nothing had to be read", "null without --faults"),
        *_of_function("major_faults", "", "page faults for which something was read", "null without --faults"),
        *_of_function("grown_bytes", "bytes", "growth of the process's resident memory", "null where that was not recorded"),
    ),
    derived=True,
)
