"""The tables of sampled stacks as data, a part of trace/schema.py."""

from pytrace_ebpf.trace.states import SYSCALL_UNKNOWN
from pytrace_ebpf.trace.table import PID, TID, Column, Table

NATIVE = "native"  # of `functions.function_layer`
SAMPLES_ALONE = "sample"  # the source of a process whose stacks are sampled and whose calls are not recorded

SAMPLES = Table(
    "samples",
    "One row per sample. Of a thread that had a core they are taken at equal intervals (the manifest's sampling.period_ns) of each core's time: "
    "each stands for one period on a core, and for those before it in which that core's clock did not tick (missed). "
    "A thread that comes back to a core after off_ns is sampled with the probability min(1, off_ns / off_period_ns), "
    "where off_period_ns is the manifest's sampling.off_period_ns, else its period_ns: such a sample stands for max(off_ns, off_period_ns) off the core. "
    "Where samples say what it was in (the manifest's sampling.states is 2), its time until it was woken and that in the run queue are two such intervals: "
    "ts is the end of its own. Without eBPF (sampling.states is 1) threads are looked at about once a period instead: "
    "those on a core give one sample for each period of the CPU time that the kernel counts for them, those off it one for each wait that a look met.",
    (),
    (
        Column("ts", "int64", "ns", "when"),
        PID,
        TID,
        Column("cpu", "int16", "", "core; -1 unknown"),
        Column(
            "stack_id",
            "int64",
            "",
            "its frames: the row of the innermost one in stacks; -1 it ran no Python, and no native frame is known; -2 they could not be read",
        ),
        Column(
            "opcode",
            "int16",
            "",
            "instruction of the innermost frame, by its number in that version of CPython, specialized as it was (from 3.11 on); -1 unknown",
        ),
        Column(
            "off_ns",
            "int64",
            "ns",
            "0 it had a core; else it had been off it for so long at ts, when it came back, was woken, or, at the end of the recording, was still away",
            absent=0,
        ),
        Column(
            "missed",
            "int32",
            "",
            "ticks of the core's clock that did not come before this one: the core of a virtual machine stood still, or had its interrupts off",
            absent=0,
        ),
        Column(
            "state",
            "int8",
            "",
            "what it was in during off_ns, where the sample knows that: 1 run queue, 2 GIL wait, 3 blocked; 0 it had a core; -1 the tables of scheduling say it, or nobody",
            absent=-1,
        ),
        Column(
            "task",
            "dictionary of string",
            "",
            "asyncio's task that ran, as its get_name() has it; of a name of more than 96 bytes the beginning and '...'; null = none ran, or it is not known",
            nullable=True,
        ),
        Column(
            "syscall",
            "int32",
            "",
            "of one that was blocked: number of the system call that it was in; -1 none: it waited for a page of memory; -2 not known",
            absent=SYSCALL_UNKNOWN,
        ),
        Column("resource_id", "int64", "", "and what it waited for there: joins resources; 0 not known", absent=0),
    ),
    counted="sample",
    timed=False,
)

STACKS = Table(
    "stacks",
    "One row per distinct stack of the samples in the same segment: its innermost frame, and the stack of that one's caller. A caller comes first. "
    "Frames are of Python, or of native code between, below and outside of those, or alone (functions.function_layer native; name by the file's symbols, else FILE+ADDRESS).",
    (),
    (
        Column("stack_id", "int64", "", "unique in the trace"),
        Column("parent_id", "int64", "", "the stack without its innermost frame; -1 none"),
        Column(
            "func_id",
            "int32",
            "",
            "joins functions; -1 unknown: its code was gone before its name could be read, or, outermost, more frames than were read",
        ),
        Column("line", "int32", "", "of the instruction that it was at; -1 unknown, or native code"),
    ),
)
