"""What threads wait for behind descriptors, in words, while it is recorded."""

from collections.abc import Mapping

import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.waits.resources import labels
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.schema import RESOURCES

_MOST = 1 << 14


class LiveResources:
    """Memory: the last _MOST rows of schema.RESOURCES. called: by resource_id what each is called, as of labels()."""

    def __init__(self) -> None:
        self._rows = to_frame(RESOURCES.arrow.empty_table(), RESOURCES)
        self.called = labels(self._rows)

    def take(self, tables: Mapping[str, pa.Table]) -> None:
        """Those that are new or changed in a segment's tables."""
        if "resources" in tables:
            met = pd.concat([self._rows, to_frame(tables["resources"], RESOURCES)], ignore_index=True)
            self._rows = met.drop_duplicates("resource_id", keep="last").tail(_MOST)
            self.called = labels(self._rows)
