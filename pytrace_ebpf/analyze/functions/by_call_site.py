"""Where functions were called from, with names: sites by the time of their calls, and of each function its hottest one."""

import pandas as pd

_NAMES = ["qualname", "file", "first_line"]


def by_call_site(sites: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """`sites` (schema.CALL_SITES), most self time first.

    In addition qualname, file and first_line of the function called, and the same of its caller, with `caller_` before the names.
    """
    names = functions.set_index("func_id")[_NAMES]
    named = sites.join(names, on="func_id").join(names.add_prefix("caller_"), on="caller_id")
    named = named.astype({"first_line": "Int64", "caller_first_line": "Int64"})
    order = ["self_ns", "total_ns", "calls"]
    return named.sort_values(order, ascending=False, kind="stable", ignore_index=True)


def hottest(sites: pd.DataFrame) -> pd.DataFrame:
    """Of by_call_site's rows the first one of each function whose line is known: caller_qualname, caller_file, call_line by func_id."""
    known = sites[sites["call_line"].notna() & (sites["func_id"] >= 0)]
    return known.drop_duplicates("func_id").set_index("func_id")[["caller_qualname", "caller_file", "call_line"]]
