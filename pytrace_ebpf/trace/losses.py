"""What can be lost while recording, a part of trace/schema.py: the classes, as in probes/events.h, and the table of windows."""

from pytrace_ebpf.trace.table import Column, Table

LOSS_CLASSES = (
    "call_ring", "function_ring", "function_map", "sched_ring", "thread_map", "stack_depth", "argument_ring", "sched_missed",
    "sample_ring", "sample_torn", "sample_native", "value_ring", "fault_ring",
    "allocation_ring", "block_ring", "block_map", "opcode_table",
)  # fmt: skip
CALL_LOSSES = ("call_ring",)
PARTLY = frozenset({"sample_native"})  # of these classes no event is missing, but a part of one
SCHED_LOSSES = ("sched_ring", "sched_missed")

LOSSES = Table(
    "losses",
    "One row per window in which events were lost.",
    (),
    (
        Column("class", "dictionary of string", "", "what was lost: " + ", ".join(LOSS_CLASSES)),
        Column("start_ns", "int64", "ns", "no event of this class was lost in the recording's part before, back to the previous window"),
        Column("end_ns", "int64", "ns", "nor after, up to the next window"),
        Column("count", "int64", "", "events lost in it"),
    ),
)
