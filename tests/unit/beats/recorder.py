"""The recorder of the made-up stream."""

import time
from typing import Any, Self

import numpy as np

from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.schema import LOSS_CLASSES


class Beats(Recorder):
    """Yields a row of each process at every drain."""

    def __init__(self, tempo: int) -> None:
        self.interval_s, self._tempo = 1 / tempo, tempo
        self._pids: list[int] = []
        self._number = 0

    @classmethod
    def of(cls, options: Options, _recording: Recording, _scheduling: Recorder) -> Self:
        return cls(options.value_of("beats_made_up"))

    def add(self, pid: int) -> None:
        self._pids.append(pid)

    def drain(self) -> Rows:
        self._number += 1
        ids, ones = np.array(self._pids, np.int32), np.ones(len(self._pids), np.int64)
        return {"beats": [{"ts": time.monotonic_ns() * ones, "pid": ids, "tid": ids, "number": self._number * ones, "beat_bytes": ones}]}

    def losses(self) -> np.ndarray:
        lost = super().losses()
        lost[LOSS_CLASSES.index("beat_ring")] = 3
        return lost

    def metadata(self) -> dict[str, Any]:
        return {"beats": {"tempo": self._tempo}}
