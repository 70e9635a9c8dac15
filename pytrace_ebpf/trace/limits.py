"""Which values a column may have: a recorder writes no others, and analyses need expect none."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace.left_out import WHY
from pytrace_ebpf.trace.observed import VALUE_STATUSES, WHATS
from pytrace_ebpf.trace.profile import SQUARES
from pytrace_ebpf.trace.resources import RESOURCE_KINDS
from pytrace_ebpf.trace.schema import LAYERS, LOSS_CLASSES, STATUSES, TASK_STATUSES, WAIT_KINDS, CallKind, SchedKind

_MOST_NS = 1 << 61  # 73 years: sums of two are far from the end of int64
_MOST_32 = (1 << 31) - 1


@dataclass(frozen=True)
class Limits:
    """Numbers from `least` to `most`, or one of `words`; whether null is allowed the column says."""

    least: float = float("-inf")
    most: float = float("inf")
    words: tuple[str, ...] = ()

    def hold(self, values: pa.ChunkedArray) -> bool:
        """Whether all `values` are within."""
        if self.words:
            return all(not word.is_valid or word.as_py() in self.words for chunk in values.chunks for word in _distinct(chunk))
        if self == Limits() or not len(values) or values.null_count == len(values):
            return True
        if values.null_count or not pa.types.is_integer(values.type):
            found = pc.min_max(values).as_py()
            return bool(self.least <= found["min"] and found["max"] <= self.most)
        chunks = [chunk.to_numpy() for chunk in values.chunks if len(chunk)]  # of few values a tenth of the time
        return all(self.least <= chunk.min() and chunk.max() <= self.most for chunk in chunks)


def _distinct(chunk: pa.Array) -> pa.Array:
    return chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else pc.unique(chunk)


_ANY = Limits()
_MOMENT = Limits(0, _MOST_NS)
_ID = Limits(-1, _MOST_32)
_MOST_FUNCTIONS = 1 << 24  # arrays by function have an element for each number up to the largest
_COUNT = Limits(0, _MOST_NS)
_BY_NAME = {
    "ts": _MOMENT,
    "pid": _ID, "tid": _ID, "ppid": _ID, "other_pid": _ID, "other_tid": _ID, "holder_tid": _ID, "waker_pid": _ID, "waker_tid": _ID,
    "func_id": Limits(-1, _MOST_FUNCTIONS), "call_id": Limits(-1), "parent_id": Limits(-1), "last_descendant_id": Limits(-1), "next_sibling_id": Limits(-1),
    "depth": Limits(0), "cpu": Limits(-1), "line": Limits(-1), "first_line": Limits(-1), "count": _COUNT,
    "layer": Limits(words=LAYERS), "function_layer": Limits(words=LAYERS), "class": Limits(words=LOSS_CLASSES),
    "user_s": Limits(0, 1e12), "system_s": Limits(0, 1e12), "idle_s": Limits(0, 1e12),
}  # fmt: skip
_BY_TABLE = {
    ("events", "kind"): Limits(min(CallKind), max(CallKind)),
    ("sched", "kind"): Limits(min(SchedKind), max(SchedKind)),
    ("functions", "func_id"): Limits(0, _MOST_FUNCTIONS),
    ("left_out", "why"): Limits(words=WHY),
    ("left_out", "calls_per_s"): Limits(0, 1e12),
    ("usage", "kind"): Limits(words=("process", "thread", "core")),
    ("usage", "id"): Limits(0, _MOST_32),
    ("samples", "stack_id"): Limits(-2),
    ("samples", "opcode"): Limits(-1, 255),
    ("samples", "missed"): Limits(0, 1 << 24),
    ("stacks", "stack_id"): Limits(0),
    ("profile", "node_id"): Limits(-3, _MOST_32),
    **{("profile", name): Limits(0, _MOST_32) for name in ("samples", "off_samples")},
    ("profile", "missed"): Limits(0, 1 << 40),
    **{("profile", name): Limits(0, 1e37) for name in SQUARES},
    ("profile_waits", "samples"): Limits(0, _MOST_32),
    ("profile_waits", "total_square"): Limits(0, 1e37),
    ("profile_waits", "primitive_func_id"): Limits(-1, _MOST_FUNCTIONS),
    ("tree", "depth"): Limits(-1),
    ("waits", "kind"): Limits(words=WAIT_KINDS),
    ("resources", "kind"): Limits(words=RESOURCE_KINDS),
    ("calls", "status"): Limits(words=STATUSES),
    ("operators", "status"): Limits(words=STATUSES),
    **{(table, "what"): Limits(words=WHATS) for table in ("observed", "values")},
    **{(table, "status"): Limits(words=VALUE_STATUSES) for table in ("observed", "values")},
    **{(table, "position"): Limits(-1) for table in ("observed", "values")},
    ("tasks", "status"): Limits(words=TASK_STATUSES),
}


def limits(table: str, column: str) -> Limits:
    """Those of a column; of every moment and duration in nanoseconds the same."""
    return _BY_TABLE.get((table, column)) or _BY_NAME.get(column) or (_MOMENT if column.endswith("_ns") else _ANY)
