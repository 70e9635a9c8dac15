"""The samples of a recording that goes on, with the time that each stands for, from its segments as they are closed."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.live.waits import LiveWaits
from pytrace_ebpf.analyze.samples.weights import weighed
from pytrace_ebpf.trace.schema import SAMPLES

_NEVER = int(np.iinfo(np.int64).max)


class LiveSamples:
    """As samples.paths.segments gives them of a trace. Memory: as of live.waits."""

    def __init__(self, start_ns: int, machine: str, period_ns: float) -> None:
        """When recording began, what `uname -m` says, and the period of the samples."""
        self._waits, self._period = LiveWaits(start_ns, machine), round(period_ns)

    def take(self, tables: Mapping[str, pa.Table], end_ns: int) -> pd.DataFrame:
        """schema.SAMPLES of the next segment but for names of tasks, with weights.SUMS and SQUARES; `tables`: what was recorded of it, by name, some may be missing."""
        intervals = self._waits.take(tables, end_ns)
        samples = tables.get("samples", SAMPLES.arrow.empty_table())
        numbers = [name for name in samples.column_names if not pa.types.is_dictionary(samples[name].type)]
        frame = pd.DataFrame({name: samples[name].to_numpy() for name in numbers}, copy=False)
        return weighed(frame, intervals, self._period, 0, _NEVER)
