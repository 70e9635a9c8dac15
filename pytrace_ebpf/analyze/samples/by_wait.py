"""Samples of threads off the core by what these waited for: a file or socket, a lock through a library's function, the GIL, a core; and in which function of the program."""

from collections.abc import Mapping, Sequence
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
from pytrace_ebpf.trace.sampled import NATIVE
from pytrace_ebpf.trace.schema import WAIT_KINDS
from pytrace_ebpf.trace.states import STATES

RUN_QUEUE, UNKNOWN = next(state.label for state in STATES if state.name == "runq_wait"), "unknown"
"""Beside those of schema.WAIT_KINDS: runnable without a core; and where nothing says what a thread waited for."""
NONE = -1
KEY = ["kind", "syscall", "resource", "primitive_func_id", "func_id"]
SUMS = {"total_ns": "sum", "total_square": "sum", "samples": "sum"}
_STATES = {"gil": "gil_wait", RUN_QUEUE: "runq_wait", None: "blocked", UNKNOWN: "unknown"}  # None: its kind is that of its system call
_IN = ["primitive_func_id", "func_id"]


def by_wait(trace: Trace) -> pd.DataFrame:
    """One row per wait of a kind, for one resource, through one function of a library, in one function of the program; longest total first.

    Out: kind (of schema.WAIT_KINDS, RUN_QUEUE or UNKNOWN), syscall (its name; null for none, and where it is not known), resource (what was behind the
    descriptor, in words, as waits.resources.labels has it; null for none), primitive_func_id (of derive.calls.primitives, as Queue.get, that the program
    called to wait; NONE), func_id (the program's own function that was innermost, else the innermost of all that are not such; NONE no Python ran),
    total_ns, error_ns (one standard error), samples.
    """
    sums = WaitSums(trace)
    for samples, stacks in () if sums.is_summed else segments(trace):
        sums.take(samples, stacks)
    return sums.table()


class WaitSums:
    """What by_wait() gives, of the segments of a trace one after the other; what a daemon has summed is there from the first."""

    def __init__(self, trace: Trace) -> None:
        self._sums = Added(KEY, SUMS)
        nothing = {**{name: np.zeros(0, object) for name in KEY[:3]}, **{name: np.zeros(0, np.int64) for name in (*_IN, *SUMS)}}
        self._sums.add(pd.DataFrame(nothing))
        waits = trace.profile_waits()
        self._sums.add(waits[[*KEY, *SUMS]].astype(dict.fromkeys(KEY[:3], object)))
        self.is_summed = bool(len(waits))
        self._callers, self._called, self._machine = Callers(), labels(trace.resources()), trace.manifest["host"]["machine"]
        self._callers.take(trace.functions())

    def take(self, samples: pd.DataFrame, stacks: pd.DataFrame) -> None:
        """Those of a segment, as samples.paths.segments has them with native frames."""
        if not self.is_summed:
            self._sums.add(waited(samples, self._callers.of(stacks), self._called, self._machine))

    def table(self) -> pd.DataFrame:
        """The rows so far."""
        table = self._sums.table.copy(deep=False)
        table["error_ns"] = np.rint(np.sqrt(table.pop("total_square").astype(np.float64))).astype(np.int64)
        return table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


class Callers:
    """Which functions wait for the program, and which are its own. Memory: three bytes for each function that there is."""

    def __init__(self) -> None:
        self._library, self._program, self._native = (np.zeros(0, bool) for _ in range(3))

    def take(self, functions: pd.DataFrame) -> None:
        """New ones, schema.FUNCTIONS."""
        ids = functions["func_id"].to_numpy(np.int64)
        if not len(ids):
            return
        of_library = among(functions, PRIMITIVES)[ids]
        masks = (of_library, own(functions), (functions["function_layer"] == NATIVE).to_numpy(bool))
        size = max(len(self._library), int(ids.max()) + 1)
        self._library, self._program, self._native = (
            _put(old, size, ids, new) for old, new in zip((self._library, self._program, self._native), masks, strict=True)
        )

    def of(self, stacks: pd.DataFrame) -> dict[int, tuple[int, int]]:
        """(primitive_func_id, func_id) by stack_id of schema.STACKS, in which a caller comes first; native frames count for who called them."""
        found = {NO_FRAMES: (NONE, NONE)}
        innermost: dict[int, int] = {NO_FRAMES: NONE}  # the program's own function
        func_ids = stacks["func_id"].to_numpy(np.int64)
        known = (func_ids >= 0) & (func_ids < len(self._library))
        library, program, native = (
            known & np.append(mask, False)[np.where(known, func_ids, -1)] for mask in (self._library, self._program, self._native)
        )
        columns = (stacks["stack_id"], stacks["parent_id"], func_ids, library, program, native)
        for stack, parent, func_id, waits, is_own, is_native in zip(*(column.tolist() for column in columns), strict=True):
            primitive, caller = found.get(parent, (NONE, NONE))
            mine = func_id if is_own else innermost.get(parent, NONE)
            innermost[stack] = mine
            if is_native:
                found[stack] = primitive, caller
            elif waits:
                found[stack] = primitive if primitive != NONE else func_id, caller
            else:
                found[stack] = NONE, mine if mine != NONE else func_id
        return found


def _put(mask: npt.NDArray[np.bool_], size: int, at: npt.NDArray[np.int64], values: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    out = np.zeros(size, bool)
    out[: len(mask)] = mask
    out[at] = values
    return out


def waited(
    samples: pd.DataFrame, callers: Mapping[int, tuple[int, int]], called: "pd.Series[Any]", machine: str, by: Sequence[str] = ()
) -> pd.DataFrame:
    """Samples (samples.weights.weighed) off the core as rows of KEY and SUMS, and of the columns `by`; `callers` of Callers, `called` of labels()."""
    samples = samples[samples["off_ns"] > 0]
    names = wait_kinds.names(samples["syscall"].to_numpy(np.int32), machine)
    kinds = np.array([WAIT_KINDS[syscalls.KIND_OF[name]] if name in syscalls.KIND_OF else "other" for name in names], object)
    kinds[samples["syscall"].to_numpy() == -1] = "page-fault"
    resource = samples["resource_id"].map(called).astype("object").to_numpy()
    inside = np.array([callers.get(stack, (NONE, NONE)) for stack in samples["stack_id"].tolist()], np.int64).reshape(-1, 2)
    parts = []
    for kind, state in _STATES.items():
        blocked = kind is None
        rows = pd.DataFrame({
            "kind": kinds if blocked else kind,
            "syscall": names if blocked else None,
            "resource": resource if blocked else None,
            "primitive_func_id": inside[:, 0] if blocked else NONE,
            "func_id": inside[:, 1],
            "total_ns": samples[f"{state}_ns"].to_numpy(),
            "total_square": samples[f"{state}_square"].to_numpy(),
            "samples": samples["samples"].to_numpy(),
            **{name: samples[name].to_numpy() for name in by},
        })  # fmt: skip
        parts.append(rows[rows["total_ns"] > 0].astype(dict.fromkeys(KEY[:3], object)))
    return pd.concat(parts, ignore_index=True).groupby([*by, *KEY], dropna=False, as_index=False).agg(SUMS)
