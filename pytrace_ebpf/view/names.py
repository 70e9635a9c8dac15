"""Tables of the analysis made ready to be shown: with the names of their functions, and as plain values."""

from typing import Any

import pandas as pd

PLACE = ("qualname", "file", "first_line")


def named(table: pd.DataFrame, functions: pd.DataFrame, side: str = "") -> pd.DataFrame:
    """`table` with the PLACE of its function (schema.FUNCTIONS), null for none; `side` stands before func_id and before these."""
    names = functions[["func_id", *PLACE]].astype({"first_line": "Int64"}).add_prefix(side)
    return table.merge(names, how="left", on=f"{side}func_id")


def plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: numbers, strings, None for null."""
    return table.astype(object).where(table.notna(), None).to_dict("records")
