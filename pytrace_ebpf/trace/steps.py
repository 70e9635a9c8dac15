"""The table of a training's steps as data, a part of trace/schema.py."""

from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.table import PID, TID, Column, Table

PHASES = ("data", "forward", "loss", "backward", "communication", "optimizer", "other")
STEP = "step"  # the row of all of a step
_DICTIONARY = "dictionary of string"
_OF_PHASE = (
    f"step, all of it; or {', '.join(PHASES)}: that of the innermost call of PyTorch that has one, and communication where the thread waits for what gloo "
    "or NCCL do for it, as in backward"
)
_OF_WALL = "of wall_ns, as in waits; null where scheduling was not recorded by eBPF, or not all of the step's"

STEPS = Table(
    "steps",
    "One row per step of a training and phase of it, and one, of the phase `step`, for all of it, in the order of pid, tid and step. "
    "A step ends where the next one asks the DataLoader for its batch or, without one, where the optimizer's step returns; passes over a DataLoader "
    "without gradients, as in validation, are no steps of a training, but those of a thread that trains nothing. With `report --step` they are the "
    "calls of what that names. Derived from calls and waits, and rebuildable. The wall_ns of a step's phases sum to its own; so do the four parts, and these to wall_ns.",
    (),
    (
        Column("step", "int64", "", "its number on its thread, from 0"),
        PID,
        TID,
        Column("rank", "int32", "", "as in processes", True),
        Column("phase", _DICTIONARY, "", _OF_PHASE),
        Column("start_ns", "int64", "ns", "when it first began in this step; of other when the step began"),
        Column("end_ns", "int64", "ns", "when it last ended; of other when the step ended"),
        Column("wall_ns", "int64", "ns", "time in this phase, which others may interrupt"),
        *(Column(name, "int64", "ns", _OF_WALL, True) for name in SPLIT),
        Column("throttled_ns", "int64", "ns", "of runq_wait_ns: its control group had no CPU quota left; null where that was not recorded", True),
        Column("resource_id", "int64", "", "what it was blocked for longest behind a descriptor, in resources; null for none", True),
    ),
    derived=True,
)  # fmt: skip
