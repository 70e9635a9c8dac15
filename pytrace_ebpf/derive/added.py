"""Sums by key of rows that come a part at a time: no more is kept than there are keys."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

KNOWN = "known"  # the sum, null where no value is known


class Added:
    """Like DataFrame.groupby(by, dropna=False).agg(how), of all parts together; `how`: by column "sum", "max" or "min", or KNOWN."""

    def __init__(self, by: Sequence[str], how: Mapping[str, str]) -> None:
        self._by, self._how = list(by), dict(how)
        self._sums: pd.DataFrame | None = None

    def add(self, part: pd.DataFrame) -> None:
        """Further rows."""
        own = self._grouped(part)
        self._sums = own if self._sums is None else self._grouped(pd.concat([sums for sums in (self._sums, own) if len(sums)] or [own]))

    def _grouped(self, rows: pd.DataFrame) -> pd.DataFrame:
        groups = rows.groupby(self._by, dropna=False, as_index=False)
        sums = groups.agg({name: "sum" if how == KNOWN else how for name, how in self._how.items()})
        if partly := [name for name, how in self._how.items() if how == KNOWN]:
            sums[partly] = groups[partly].sum(min_count=1)[partly]
        return sums

    @property
    def table(self) -> pd.DataFrame:
        """One row per key, in their order, with the columns of `how`. There must have been a part, which may be empty."""
        assert self._sums is not None
        return self._sums


def added(parts: Iterable[pd.DataFrame], by: Sequence[str], how: Mapping[str, str]) -> pd.DataFrame:
    """Added.table of all `parts`, at least one."""
    sums = Added(by, how)
    for part in parts:
        sums.add(part)
    return sums.table
