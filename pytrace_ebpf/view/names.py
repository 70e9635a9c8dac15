"""Tables of the analysis made ready to be shown: with the names of their functions, and as plain values."""

from typing import Any

import pandas as pd

PLACE = ("qualname", "file", "first_line")


def named(table: pd.DataFrame, functions: pd.DataFrame, side: str = "") -> pd.DataFrame:
    """`table` with the PLACE of its function (schema.FUNCTIONS), null for none; `side` stands before func_id and before these."""
    names = functions[["func_id", *PLACE]].astype({"first_line": "Int64"}).add_prefix(side)
    return table.merge(names, how="left", on=f"{side}func_id")


def in_full(functions: pd.DataFrame, *used: "pd.Series[int]") -> "pd.Series[Any]":
    """By func_id what to call the `used` functions (none given: all) of a library (schema.FUNCTIONS): Queue.get or, where no class is known, as before 3.11, queue.get."""
    chosen = functions[functions["func_id"].isin(pd.concat(used))] if used else functions
    rows = chosen.set_index("func_id")[["qualname", "module"]].astype("object").fillna("?")
    return rows["qualname"].where(rows["qualname"].str.contains(".", regex=False), rows["module"] + "." + rows["qualname"])


def plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: numbers, strings, None for null."""
    return table.astype(object).where(table.notna(), None).to_dict("records")
