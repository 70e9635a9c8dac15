"""What can be lost while recording, a part of trace/schema.py: the classes, as in probes/events.h, and the table of windows."""

from pytrace_ebpf.trace.kinds import SchedKind
from pytrace_ebpf.trace.table import Column, Table

LOSS_CLASSES = (
    "call_ring", "function_ring", "function_map", "sched_ring", "thread_map", "stack_depth", "argument_ring", "sched_missed",
    "sample_ring", "sample_torn", "sample_native", "value_ring", "fault_ring",
    "allocation_ring", "block_ring", "block_map", "opcode_table",
    "sched_in", "sched_out", "sched_waking",
)  # fmt: skip
CALL_LOSSES = ("call_ring",)
# Events that the kernel reports to nobody, by their kind: a row for each, with its thread. Whatever the time of a call in between depends on is null.
NOT_REPORTED = {SchedKind.IN: "sched_in", SchedKind.OUT: "sched_out", SchedKind.WAKING: "sched_waking"}
PARTLY = frozenset(
    {"sample_native", *NOT_REPORTED.values()}
)  # of these classes it is no event of a call that is missing, but a part of what is known of some
SCHED_LOSSES = ("sched_ring", "sched_missed")

LOSSES = Table(
    "losses",
    "One row per window in which events were lost. sched_in, sched_out, sched_waking: a switch to a thread, one away from it, or its wake-up, "
    "which the kernel did not report, as the next event of that thread shows: one row for each.",
    (),
    (
        Column("class", "dictionary of string", "", "what was lost: " + ", ".join(LOSS_CLASSES)),
        Column("start_ns", "int64", "ns", "no event of this class was lost in the recording's part before, back to the previous window"),
        Column("end_ns", "int64", "ns", "nor after, up to the next window"),
        Column("count", "int64", "", "events lost in it"),
        Column("pid", "int32", "", "process of tid", True),
        Column(
            "tid",
            "int32",
            "",
            "sched_in, sched_out, sched_waking: the thread that it concerns, whose events before and after are start_ns and end_ns; else null: any",
            True,
        ),
    ),
)
