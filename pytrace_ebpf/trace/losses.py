"""What can be lost while recording, a part of trace/schema.py: the classes, as in probes/events.h, and the table of windows."""

from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.kinds import SchedKind
from pytrace_ebpf.trace.stream import Loss
from pytrace_ebpf.trace.table import Column, Table

_OF_ALL = (
    Loss("call_ring", 0, "function event", "function events", "calls that ran meanwhile are marked in_loss"),
    Loss("function_ring", 1, "function name", "function names", "a name is requested again at the next call"),
    Loss("function_map", 2, "function", "functions", "what cannot be named is shown as unknown"),
    Loss("sched_ring", 3, "scheduling event", "scheduling events", "the split of that time is unknown"),
    Loss(
        "thread_map",
        4,
        "thread whose scheduling was not seen, or event of an unknown thread",
        "threads whose scheduling was not seen, or events of unknown threads",
    ),
    Loss("stack_depth", 5, "frame", "frames", "the stack was too deep to be read to its end"),
    Loss("sched_missed", 7, "switch that the tracer missed", "switches that the tracer missed", "the split of that time is unknown"),
    Loss("sample_ring", 8, "sample, or its stack", "samples, or their stacks"),
    Loss(
        "sample_torn",
        9,
        "stack that changed while it was sampled, or of a thread that no look met on a core",
        "stacks that changed while they were sampled, or of threads that no look met on a core",
        "that time has no function",
    ),
    Loss("sample_native", 10, "sample with unknown native frames", "samples with unknown native frames", "the Python frames are known"),
    Loss("sched_in", 17, "switch to a thread", "switches to a thread", "how long the thread waited for the core, or had it, is not known there"),
    Loss("sched_out", 18, "switch away from a thread", "switches away from a thread", "what the thread did then is not known"),
    Loss("resource_ring", 20, "name of what was waited for", "names of what was waited for", "it is named when it is next waited for"),
    Loss("external_ring", 21, "switch of another program", "switches of other programs", "who had a core meanwhile is not known for so many of them"),
    Loss("sched_waking", 19, "wake-up", "wake-ups", "how long the thread was blocked, and how long in the run queue, is not known there"),
)  # of what is recorded whatever is asked for, and of the sources of calls
LOST = {loss.name: loss for loss in sorted((*_OF_ALL, *(loss for stream in STREAMS for loss in stream.losses)), key=lambda loss: loss.number)}
LOSS_CLASSES = tuple(LOST)
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
