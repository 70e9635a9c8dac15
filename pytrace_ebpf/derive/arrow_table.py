"""Rows of a NumPy structure as the Arrow table that the schema asks for."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.trace.schema import Table


def to_arrow(spec: Table, rows: npt.NDArray[Any], columns: Mapping[str, pa.Array]) -> pa.Table:
    """The table `spec`: those of `columns` as they are, the others from the fields of `rows`, where a nullable one is null below zero."""
    made = dict(columns)
    for column in spec.columns:
        if column.name not in made:
            values = rows[column.name]
            made[column.name] = pa.array(values, mask=values < 0 if column.nullable else None)
    return pa.table([made[name] for name in spec.arrow.names], schema=spec.arrow)


def from_frame(spec: Table, rows: pd.DataFrame) -> pa.Table:
    """The table `spec` of the columns of `rows`."""
    return pa.table([pa.array(rows[field.name], field.type, from_pandas=True) for field in spec.arrow], schema=spec.arrow)
