"""Calls made by hand or at random, as the reader gives them, with what a slow and obvious walk says of them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

SPLIT = ("on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns")


@dataclass
class Call:
    """One call: function, self time per state (on CPU, run queue, GIL, blocked), the calls below it; in that order."""

    func: int
    own: tuple[int, int, int, int] | int | None = 0
    below: Sequence["Call"] = ()
    start: int = field(default=0, init=False)
    call_id: int = field(default=-1, init=False)

    @property
    def self_split(self) -> tuple[int, int, int, int] | None:
        return (self.own, 0, 0, 0) if isinstance(self.own, int) else self.own

    def split(self) -> tuple[int, ...] | None:
        """Four totals; None where the scheduling of any part is unknown."""
        parts = [self.self_split, *(c.split() for c in self.below)]
        return None if None in parts else tuple(sum(p) for p in zip(*parts, strict=True))  # type: ignore[arg-type]

    def walk(self) -> list["Call"]:
        return [self, *(d for c in self.below for d in c.walk())]


UNKNOWN_NS = 1_000  # self time of a call whose split is unknown


def wall(call: Call) -> int:
    return (UNKNOWN_NS if call.self_split is None else sum(call.self_split)) + sum(wall(c) for c in call.below)


def frame(
    threads: dict[int, Sequence[Call]], pid: int = 10, start_ns: int = 1_000_000, stride: int = 1, first_ids: Sequence[int] | None = None
) -> pd.DataFrame:
    """The `calls` rows of threads given as tid -> outermost calls; `stride` 2 interleaves the ids of threads, `first_ids` are where each begins."""
    rows: list[dict[str, object]] = []
    for offset, (tid, roots) in enumerate(threads.items()):
        at, next_id = start_ns, (offset if stride > 1 else len(rows)) if first_ids is None else first_ids[offset]

        def add(call: Call, at: int, depth: int, parent: int, tid: int = tid) -> int:
            nonlocal next_id
            call.call_id, call.start = next_id, at
            next_id += stride
            row = {"call_id": call.call_id, "parent_id": parent, "depth": depth, "pid": pid, "tid": tid, "func_id": call.func}
            rows.append(row)
            end = at
            for child in call.below:
                end = add(child, end, depth + 1, call.call_id)
            end = at + wall(call)
            split = call.split() or (None,) * 4
            row |= {"last_descendant_id": next_id - stride, "start_ns": at, "end_ns": end, "wall_ns": end - at}
            row |= dict(zip(SPLIT, split, strict=True))
            return end

        for root in roots:
            at = add(root, at, 0, -1)
    table = pd.DataFrame(rows).sort_values("call_id", ignore_index=True)
    return table.astype(dict.fromkeys(SPLIT, "Int64"))


def random_calls(seed: int, functions: int = 4, depth: int = 6) -> Sequence[Call]:
    """A few random outermost calls, recursion included, one in ten with an unknown split."""
    dice = random.Random(seed)

    def make(level: int) -> Call:
        below = [make(level + 1) for _ in range(dice.randrange(4))] if level < depth else []
        own = None if dice.random() < 0.1 else tuple(dice.randrange(3) * 100 for _ in range(4))
        return Call(dice.randrange(functions), own, below)  # type: ignore[arg-type]

    return [make(0) for _ in range(1 + dice.randrange(4))]


def functions(count: int) -> pd.DataFrame:
    """`functions` rows 0..count-1, two a module."""
    return pd.DataFrame(
        [(i, f"/app/m{i // 2}.py", f"f{i}", f"C.f{i}", 10 * i + 1, f"m{i // 2}") for i in range(count)],
        columns=["func_id", "file", "name", "qualname", "first_line", "module"],
    )
