"""What an agent's allocators counted of one process: each record with the moment of the event that it follows, as of values."""

from collections.abc import Callable, Sequence

import numpy as np

from pytrace_ebpf.record.agent.arena import Arena, Damaged, Piece
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.namespaces import UNKNOWN_THREAD

_MOST = 1 << 56  # bytes: more than an address has


class Allocations:
    """Of one arena."""

    def __init__(self) -> None:
        self.lost = 0  # whose event is not known
        self._waiting: list[tuple[int, int, np.ndarray]] = []  # (thread, tid, records) whose event was not there yet

    def take(
        self, arena: Arena, pieces: Sequence[Piece], tids: dict[int, int], pid: int, moments: Callable[[int, np.ndarray], np.ndarray]
    ) -> list[Columns]:
        """Columns of `allocations`. `moments`: of a thread's events, by their numbers; -1 not known. Raises Damaged."""
        waiting, self._waiting = self._waiting, []
        new = [(piece.thread, tids[piece.tid], _checked(arena.allocations(piece))) for piece in pieces if tids[piece.tid] != UNKNOWN_THREAD]
        arena.give_back(list(pieces))
        batches = list[Columns]()
        for some, again in ((waiting, False), (new, True)):
            for thread, tid, records in some:
                ts = moments(thread, records["event"])
                known = ts >= 0
                if not known.all() and again:
                    self._waiting.append((thread, tid, records[~known]))
                elif not known.all():
                    self.lost += int((~known).sum())
                batches.append(_columns(records[known], ts[known], pid, tid))
        return batches


def _columns(records: np.ndarray, ts: np.ndarray, pid: int, tid: int) -> Columns:
    names = {
        "blocks": "blocks",
        "bytes": "bytes",
        "freed_blocks": "freed_blocks",
        "freed_bytes": "freed_bytes",
        "level_bytes": "level",
        "peak_bytes": "peak",
    }
    return {
        "ts": ts,
        "pid": np.full(len(ts), pid, np.int32),
        "tid": np.full(len(ts), tid, np.int32),
        **{name: records[field].astype(np.int64) for name, field in names.items()},
    }


def _checked(records: np.ndarray) -> np.ndarray:
    """Records that an agent can have written. Raises Damaged."""
    right = (records["level"] > -_MOST) & (records["level"] < _MOST) & (records["peak"] >= 0) & (records["peak"] < _MOST)
    right &= (records["bytes"] < _MOST) & (records["freed_bytes"] < _MOST)
    if not right.all():
        raise Damaged("holds sizes of memory that no agent writes")
    return records
