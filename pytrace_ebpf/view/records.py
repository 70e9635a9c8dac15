"""Values and rows of tables as JSON has them."""

from typing import Any

import pandas as pd


def plain(value: Any) -> Any:
    """A cell: an integer, a string, or None for what is not known."""
    return None if pd.isna(value) else value if isinstance(value, str) else int(value)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows, by column."""
    return [{name: plain(value) for name, value in row.items()} for row in table.to_dict("records")]
