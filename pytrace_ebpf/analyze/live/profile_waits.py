"""A window's samples as rows of `profile_waits`: summed by process, and by what their threads waited for."""

from collections.abc import Mapping

import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.live.live_resources import LiveResources
from pytrace_ebpf.analyze.samples.by_wait import KEY, SUMS, Callers, waited
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.schema import FUNCTIONS, PROFILE_WAITS, STACKS

MOST_ROWS = 4096
"""Of a window: of more, those with least time name no resource."""


class ProfileWaits:
    """Takes one window after the other. Memory: three bytes for each function, that of LiveResources, and a window."""

    def __init__(self, machine: str) -> None:
        """What `uname -m` says."""
        self._machine, self._callers = machine, Callers()
        self._resources = LiveResources()

    def take(self, tables: Mapping[str, pa.Table], samples: pd.DataFrame, start_ns: int, end_ns: int, most: int = MOST_ROWS) -> pa.Table:
        """schema.PROFILE_WAITS of the window [start_ns, end_ns): `samples` as of live.samples, and what else was recorded of it, by name."""
        if "functions" in tables:
            self._callers.take(to_frame(tables["functions"], FUNCTIONS))
        self._resources.take(tables)
        stacks = tables.get("stacks", STACKS.arrow.empty_table()).to_pandas()
        rows = waited(samples, self._callers.of(stacks), self._resources.called, self._machine, by=["pid"])
        if len(rows) > most:
            rare = rows["total_ns"].rank(method="first", ascending=False) > most // 2
            rows["resource"] = rows["resource"].mask(rare, None)
            rows = rows.groupby(["pid", *KEY], dropna=False, as_index=False).agg(SUMS)
        return pa.Table.from_pandas(
            rows.assign(start_ns=start_ns, end_ns=end_ns)[list(PROFILE_WAITS.arrow.names)], PROFILE_WAITS.arrow, preserve_index=False
        )
