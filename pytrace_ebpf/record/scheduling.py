"""What a source of scheduling is to the recording."""

from typing import Protocol

import numpy as np

from pytrace_ebpf.record.tables import Columns


class Scheduling(Protocol):
    """Tells when the threads of the recorded processes ran and waited."""

    name: str
    interval_s: float  # how often to drain
    why: str  # one sentence: why this one, and what it does not know

    @property
    def alert_fd(self) -> int | None:
        """Readable when a process began or ended; None: look at every tick."""

    def start(self, pid: int) -> None:
        """Record every thread of `pid` from now on."""

    def drain(self) -> dict[str, Columns]:
        """Columns of the tables that it fills, of what came since the last call."""

    def silence_alerts(self) -> None:
        """Let `alert_fd` be readable only for what is new from now on."""

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""

    def close(self) -> None:
        """Let go of everything."""
