"""Lines with the names of their functions, those first that took most time themselves: as analyze.samples.by_line has sampled ones."""

import numpy as np
import pandas as pd


def exact_lines(lines: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """`lines` (schema.LINES) with qualname, file, first_line and module, function by function, there by line."""
    named = functions[["func_id", "qualname", "file", "first_line", "module"]].merge(lines, on="func_id")
    rank = named.groupby("func_id")["self_ns"].transform("sum")
    order = np.lexsort((named["line"], named["func_id"], -rank))
    return named.iloc[order].reset_index(drop=True)
