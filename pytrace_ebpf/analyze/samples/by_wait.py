"""Samples of threads off the core by what these waited for: a file or socket, a lock through a library's function, the GIL, a core; and in which function of the program."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.samples.paths import NO_FRAMES, segments
from pytrace_ebpf.analyze.waits.resources import labels
from pytrace_ebpf.derive.added import Added
from pytrace_ebpf.derive.calls.own_code import own
from pytrace_ebpf.derive.calls.primitives import PRIMITIVES, among
from pytrace_ebpf.derive.scheduling import syscalls, wait_kinds
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import WAIT_KINDS
from pytrace_ebpf.trace.states import STATES

RUN_QUEUE, UNKNOWN = next(state.label for state in STATES if state.name == "runq_wait"), "unknown"
"""Beside those of schema.WAIT_KINDS: runnable without a core; and where nothing says what a thread waited for."""
NONE = -1
_KEY = ["kind", "syscall", "resource", "primitive_func_id", "func_id"]
_SUMS = {"total_ns": "sum", "square": "sum", "samples": "sum"}
_STATES = {"gil": "gil_wait", RUN_QUEUE: "runq_wait", None: "blocked", UNKNOWN: "unknown"}  # None: its kind is that of its system call
_IN = ["primitive_func_id", "func_id"]


def by_wait(trace: Trace) -> pd.DataFrame:
    """One row per wait of a kind, for one resource, through one function of a library, in one function of the program; longest total first.

    Out: kind (of schema.WAIT_KINDS, RUN_QUEUE or UNKNOWN), syscall (its name; null for none, and where it is not known), resource (what was behind the
    descriptor, in words, as waits.resources.labels has it; null for none), primitive_func_id (of derive.calls.primitives, as Queue.get, that the program
    called to wait; NONE), func_id (the program's own function that was innermost, else the innermost of all that are not such; NONE no Python ran),
    total_ns, error_ns (one standard error), samples.
    """
    sums = Added(_KEY, _SUMS)
    sums.add(pd.DataFrame({**{name: np.zeros(0, object) for name in _KEY[:3]}, **{name: np.zeros(0, np.int64) for name in (*_IN, *_SUMS)}}))
    called, machine, functions = labels(trace.resources()), trace.manifest["host"]["machine"], trace.functions()
    library, program = among(functions, PRIMITIVES), _mask(functions["func_id"].to_numpy()[own(functions)])
    for samples, stacks in segments(trace, native=False):
        off = samples[samples["off_ns"] > 0]
        if len(off):
            sums.add(_rows(off, _callers(stacks, library, program), called, machine))
    table = sums.table
    table["error_ns"] = np.rint(np.sqrt(table.pop("square").astype(np.float64))).astype(np.int64)
    return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def _mask(func_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(int(func_ids.max()) + 1 if len(func_ids) else 0, bool)
    mask[func_ids] = True
    return mask


def _callers(stacks: pd.DataFrame, library: npt.NDArray[np.bool_], program: npt.NDArray[np.bool_]) -> dict[int, tuple[int, int]]:
    """(primitive_func_id, func_id) by stack_id of schema.STACKS without native frames; masks by func_id."""
    found = {NO_FRAMES: (NONE, NONE)}
    innermost: dict[int, int] = {NO_FRAMES: NONE}  # the program's own function
    for stack, parent, func_id in zip(*(stacks[name].tolist() for name in ("stack_id", "parent_id", "func_id")), strict=True):
        primitive, caller = found.get(parent, (NONE, NONE))
        mine = func_id if 0 <= func_id < len(program) and program[func_id] else innermost.get(parent, NONE)
        innermost[stack] = mine
        if 0 <= func_id < len(library) and library[func_id]:
            found[stack] = primitive if primitive != NONE else func_id, caller
        else:
            found[stack] = NONE, mine if mine != NONE else func_id
    return found


def _rows(samples: pd.DataFrame, callers: Mapping[int, tuple[int, int]], called: "pd.Series[Any]", machine: str) -> pd.DataFrame:
    """Samples off the core as rows of _KEY and _SUMS; `called`: of labels()."""
    numbers = samples["syscall"].to_numpy(np.int32) if "syscall" in samples else np.full(len(samples), -1, np.int32)
    resource = samples["resource_id"].map(called).astype("object") if "resource_id" in samples else None
    names = wait_kinds.names(numbers, machine)
    kinds = [WAIT_KINDS[syscalls.KIND_OF[name]] if name in syscalls.KIND_OF else "other" for name in names]
    inside = np.array([callers.get(stack, (NONE, NONE)) for stack in samples["stack_id"].tolist()], np.int64).reshape(-1, 2)
    parts = []
    for kind, state in _STATES.items():
        blocked = kind is None
        rows = pd.DataFrame(
            {
                "kind": kinds if blocked else kind,
                "syscall": names if blocked else None,
                "resource": resource if blocked else None,
                "primitive_func_id": inside[:, 0] if blocked else NONE,
                "func_id": inside[:, 1],
                "total_ns": samples[f"{state}_ns"].to_numpy(),
                "square": samples[f"{state}_square"].to_numpy(),
                "samples": samples["samples"].to_numpy(),
            }
        )
        parts.append(rows[rows["total_ns"] > 0].astype(dict.fromkeys(_KEY[:3], object)))
    rows = pd.concat(parts, ignore_index=True)
    return rows.groupby(_KEY, dropna=False, as_index=False).agg(_SUMS)
