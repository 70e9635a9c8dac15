"""The derived tables that depend on which functions a user names: requests and steps."""

from abc import abstractmethod
from collections.abc import Sequence

import pandas as pd
import pyarrow.compute as pc

from pytrace_ebpf.trace.deriving import Deriving
from pytrace_ebpf.trace.schema import REQUESTS, STEPS, Table


class Asked(Deriving):
    """What a Trace has of them."""

    @abstractmethod
    def _by_number(self, spec: Table, columns: Sequence[str] | None, where: list[pc.Expression], key: Sequence[str] = ()) -> pd.DataFrame:
        """Rows of a derived table, in the order of `key`."""

    def requests(self, columns: Sequence[str] | None = None, patterns: Sequence[str] = ()) -> pd.DataFrame:
        """One row per request, in the order of request_id; columns as in schema.REQUESTS.

        `patterns`: further functions that answer requests, as `report --request` takes them. The first use derives them and keeps
        them in the trace directory, as with the calls.
        """
        if added := [pattern for pattern in patterns if pattern not in self.request_patterns]:
            self.request_patterns += tuple(added)
            self._derived.pop("requests", None)
        return self._by_number(REQUESTS, columns, [], ("request_id",))

    def steps(self, columns: Sequence[str] | None = None, patterns: Sequence[str] = ()) -> pd.DataFrame:
        """One row per step of a training and phase of it, in the order of pid, tid, step and start; columns as in schema.STEPS.

        `patterns`: functions whose calls are the steps, as `report --step` takes them; without any they are found. The first use derives
        them and keeps them in the trace directory, as with the calls.
        """
        if patterns and tuple(patterns) != self.step_patterns:
            self.step_patterns = tuple(patterns)
            self._derived.pop("steps", None)
        return self._by_number(STEPS, columns, [], ("pid", "tid", "step", "start_ns"))
