"""Samples by the task that ran: its name, and its coroutine, the outermost of those that await each other where the thread was."""

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.analyze.samples.weights import COLUMNS, named
from pytrace_ebpf.derive.added import Added
from pytrace_ebpf.derive.sinks.tasks import ASYNC_GENERATOR, COROUTINE, GENERATOR
from pytrace_ebpf.trace.reader import Trace

NONE = -1
_ITERABLE_COROUTINE = 0x100  # co_flags: what types.coroutine makes of a generator
AUTOMATIC = "Task-N"  # what tasks are called to which nobody gave a name
OTHERS = "(others)"
_MOST_ROWS = 10_000  # then names that had least time become OTHERS
_KEYS = ["func_id", "task"]
_AWAITS = GENERATOR | COROUTINE | _ITERABLE_COROUTINE | ASYNC_GENERATOR


def by_task(trace: Trace, period: int, of: int) -> pd.DataFrame:
    """One row per name and coroutine function of tasks, most time first: func_id (NONE: no task ran, or its coroutine is not known), task, total_ns, what that
    is split into, total_samples.

    task: AUTOMATIC for all that asyncio named itself, OTHERS for those with least time of very many, null where no name is known. Errors as
    errors.with_errors has them, of `of` samples on a core.
    """
    columns = named("total", "")
    flags = trace.functions().set_index("func_id")["flags"].to_dict()
    sums = Added(_KEYS, dict.fromkeys(columns, "sum"))
    sums.add(pd.DataFrame({"func_id": np.zeros(0, np.int64), "task": np.zeros(0, object), **{name: np.zeros(0, np.int64) for name in columns}}))
    for samples, stacks in segments(trace, native=False):
        sums.add(_counted(samples, tasks_of(stacks, flags)))
        if len(sums.table) > _MOST_ROWS:
            sums = _fewer(sums.table, columns)
    table = with_errors(sums.table.drop(columns=[name for name in columns if "unknown" in name]), period, of)
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def _counted(samples: pd.DataFrame, tasks: dict[int, int]) -> pd.DataFrame:
    name = samples["task"].astype(object)
    name = name.mask(name.str.fullmatch(r"Task-\d+", na=False), AUTOMATIC)
    keys = {"func_id": samples["stack_id"].map(tasks).fillna(NONE).astype(np.int64), "task": name}
    return samples[list(COLUMNS)].set_axis(named("total", ""), axis=1).assign(**keys)


def _fewer(table: pd.DataFrame, columns: list[str]) -> Added:
    """Half of _MOST_ROWS, and one more for each function."""
    least = table["total_ns"].rank(method="first", ascending=False) > _MOST_ROWS // 2
    sums = Added(_KEYS, dict.fromkeys(columns, "sum"))
    sums.add(table.assign(task=table["task"].mask(least & table["task"].notna(), OTHERS)))
    return sums


def tasks_of(stacks: pd.DataFrame, flags: dict[int, int]) -> dict[int, int]:
    """The func_id of the task that ran, by stack_id; `stacks`: schema.STACKS without native frames, `flags`: co_flags by func_id.

    A coroutine that anything but a coroutine or a generator called was resumed by an event loop, or begun by a task that begins others at once.
    """
    of: dict[int, tuple[int, bool]] = {}  # and whether the innermost frame is one that can await
    for stack, parent, func_id in zip(*(stacks[name].tolist() for name in ("stack_id", "parent_id", "func_id")), strict=True):
        task, awaiting = of.get(parent, (NONE, False))
        kind = flags.get(func_id, 0) & _AWAITS
        begins = bool(kind & (COROUTINE | _ITERABLE_COROUTINE)) and not awaiting
        of[stack] = func_id if begins else task, bool(kind) and (begins or awaiting)
    return {stack: task for stack, (task, _) in of.items()}
