"""Tables of a trace that are read whole, as pandas.DataFrame."""

from abc import abstractmethod
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.parts import Part
from pytrace_ebpf.trace.schema import STACKS, Table


class Logs:
    """What a Trace has of these; of a window of one the rows within."""

    @abstractmethod
    def _log(self, name: str, columns: Sequence[str] | None, start_ns: int | None, end_ns: int | None, where: list[pc.Expression]) -> pd.DataFrame:
        """Rows of a table that have a moment."""

    @abstractmethod
    def _parts(self, name: str) -> list[Part]:
        """Parts of a table."""

    @abstractmethod
    def _load(self, spec: Table, parts: list[Part], columns: list[str], where: list[pc.Expression]) -> pa.Table:
        """Rows of parts."""

    def cputime(self) -> pd.DataFrame:
        """Samples of CPU time, where there are no scheduling events; columns as in schema.CPUTIME."""
        return self._log("cputime", None, None, None, [])

    def usage(self) -> pd.DataFrame:
        """psutil samples; columns as in schema.USAGE."""
        return self._log("usage", None, None, None, [])

    def errors(self) -> pd.DataFrame:
        """Errors raised by native code; columns as in schema.ERRORS."""
        return self._log("errors", None, None, None, [])

    def observed(self) -> pd.DataFrame:
        """What observed calls were given and returned, by the moment; columns as in schema.OBSERVED."""
        return self._log("observed", None, None, None, [])

    def samples(self) -> pd.DataFrame:
        """Samples of threads that had a core; columns as in schema.SAMPLES."""
        return self._log("samples", None, None, None, [])

    def stacks(self) -> pd.DataFrame:
        """The stacks that samples name, of all segments that the window touches; columns as in schema.STACKS."""
        return to_frame(self._load(STACKS, self._parts("stacks"), STACKS.known(None), []), STACKS)

    def losses(self) -> pd.DataFrame:
        """Windows in which events were lost; columns as in schema.LOSSES."""
        return self._log("losses", None, None, None, [])
