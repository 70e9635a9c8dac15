"""Samples by the task that ran: the outermost of the coroutines that await each other where the thread was."""

from itertools import chain

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.added import added
from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.analyze.samples.weights import COLUMNS, named
from pytrace_ebpf.analyze.tasks.tasks import ASYNC_GENERATOR, COROUTINE, GENERATOR
from pytrace_ebpf.trace.reader import Trace

NONE = -1
_ITERABLE_COROUTINE = 0x100  # co_flags: what types.coroutine makes of a generator
_AWAITS = GENERATOR | COROUTINE | _ITERABLE_COROUTINE | ASYNC_GENERATOR


def by_task(trace: Trace, period: int, of: int) -> pd.DataFrame:
    """One row per coroutine function that was a task's own, most time first: func_id (NONE: no task ran), total_ns, what that is split into, total_samples.

    Errors as errors.with_errors has them, of `of` samples on a core. Of which task of that function, no stack tells.
    """
    columns = named("total", "")
    flags = trace.functions().set_index("func_id")["flags"].to_dict()
    none = pd.DataFrame({name: np.zeros(0, np.int64) for name in ("func_id", *columns)})
    found = (_counted(samples, tasks_of(stacks, flags)) for samples, stacks in segments(trace, native=False))
    table = added(chain([none], found), ["func_id"], dict.fromkeys(columns, "sum"))
    table = with_errors(table.drop(columns=[name for name in columns if "unknown" in name]), period, of)
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def _counted(samples: pd.DataFrame, tasks: dict[int, int]) -> pd.DataFrame:
    func_id = samples["stack_id"].map(tasks).fillna(NONE).astype(np.int64)
    return samples[list(COLUMNS)].set_axis(named("total", ""), axis=1).groupby(func_id.rename("func_id")).sum().reset_index()


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
