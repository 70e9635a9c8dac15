"""`report --by rhythm`."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text


def found(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """By process how many beats there were."""
    return trace.beats().groupby("pid", as_index=False).agg(beats=("number", "size")), {"sentence": None}


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    return [Text(f"process {row.pid}: some beats") for row in table.head(top).itertuples()]
