"""The samples of a recording that goes on, with the time that each stands for, from its segments as they are closed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.live.live_waits import LiveWaits
from pytrace_ebpf.analyze.samples.weights import Periods, weighed
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.schema import SAMPLES

_NEVER = int(np.iinfo(np.int64).max)


class LiveSamples:
    """As samples.paths.segments gives them of a trace. Memory: as of live.waits."""

    def __init__(self, start_ns: int, machine: str, sampling: Mapping[str, Any]) -> None:
        """When recording began, what `uname -m` says, and the manifest's `sampling`."""
        self._waits, self._periods = LiveWaits(start_ns, machine), Periods.of(sampling)

    def take(self, tables: Mapping[str, pa.Table], end_ns: int) -> pd.DataFrame:
        """schema.SAMPLES of the next segment, with weights.SUMS and SQUARES; `tables`: what was recorded of it, by name, some may be missing."""
        intervals = self._waits.take(tables, end_ns)
        samples = tables.get("samples", SAMPLES.arrow.empty_table())
        frame = to_frame(samples, SAMPLES)
        return weighed(frame, intervals, self._periods, 0, _NEVER)
