"""What a recording is made of: whatever yields rows of the trace, by one protocol.

A stream (trace/stream.py) names its recorder, which recorders.py makes where the stream is asked for. Nothing else knows it by name.
"""

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.trace.schema import LOSS_CLASSES

if TYPE_CHECKING:
    from pytrace_ebpf.record.options import Options
    from pytrace_ebpf.record.source import Recording

Rows = dict[str, list[Columns]]  # of each table batches of rows, in any order


class Recorder:
    """One stream of rows, or several. What a recorder has no use for it leaves as it is here."""

    alert_fd: int | None = None  # readable when something happened that cannot wait for the next tick; drain() reads it
    interval_s: float = 1.0  # how long it can wait to be drained; it may change

    @classmethod
    def of(cls, _options: "Options", _recording: "Recording", _scheduling: "Recorder") -> Self:
        """That of a recording, beside what records its scheduling. Raises HostError where it cannot be had here."""
        return cls()

    def approach(self, pid: int) -> None:
        """It is going to be added, to the first of the recorders."""

    def add(self, pid: int) -> None:
        """Record all threads of this process from now on; one that was added already stays as it is.

        What a recorded process starts is not added: a recorder follows it by itself, or finds it among the processes
        that are known. Raises TargetError, and HostError where nothing can be recorded here.
        """

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """Thread `tid` called exec at `ts`: its process is another program since, and that thread its only one."""

    def drain(self) -> Rows:
        """The rows since the last call."""
        return {}

    @property
    def owed_ns(self) -> int | None:
        """Since when rows are still to come, of which it is not known yet whose they are; None: all were given."""
        return None

    def observe(self, drained: Rows) -> None:
        """Learn from what all recorders yielded just now."""

    def cut(self) -> Rows:
        """What belongs to a segment once, asked when it is closed: a sample, the rows of a keyed table that are new."""
        return {}

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        return np.zeros(len(LOSS_CLASSES), np.int64)

    def metadata(self) -> dict[str, Any]:
        """Keys of the manifest, as they stand now."""
        return {}

    def missing(self) -> tuple[str, ...]:
        """What was asked for and is not in the trace so far, a sentence each."""
        return ()

    def take_said(self) -> list[str]:
        """What a person is to be told now, a sentence each, once."""
        return []

    def cost(self) -> dict[str, Any]:
        """Keys of the manifest's `cost`, measured when all is drained; a key that cannot be measured is left out or None."""
        return {}

    def stop(self) -> None:
        """Record nothing from now on; what was recorded can still be drained."""

    def leave(self) -> int:
        """Leave every process as it was; what was recorded meanwhile can still be drained. Returns until when that was, ns; 0: when all stopped."""
        return 0

    def close(self) -> None:
        """Let go of everything, whatever happened."""
