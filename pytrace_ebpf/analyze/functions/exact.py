"""Lines and instructions where each one was recorded: with names, in total, by function, and where CPython could not specialize them."""

import numpy as np
import pandas as pd

_FORM = ["opcode", "specialized", "state"]
_FIGURES = ["hits", "wall_ns"]
_SPECIALIZABLE = ["specialized", "generic", "unknown"]


def exact_opcodes(opcodes: pd.DataFrame) -> pd.DataFrame:
    """`opcodes` (schema.OPCODES) summed over processes and segments: func_id, line, opcode, specialized (None: none), state, hits, wall_ns."""
    plain = opcodes.astype(dict.fromkeys(_FORM, "object"))
    plain["specialized"] = plain["specialized"].where(plain["specialized"].notna(), None)
    return plain.groupby(["func_id", "line", *_FORM], dropna=False, as_index=False, sort=True)[_FIGURES].sum()


def in_total(table: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """exact_opcodes()'s rows by form: opcode, specialized, state, hits, wall_ns, and the function that executed it most often; most time first."""
    by_function = table.groupby([*_FORM, "func_id"], dropna=False, as_index=False)[_FIGURES].sum()
    most = by_function.sort_values("hits", ascending=False, kind="stable").drop_duplicates(_FORM)[[*_FORM, "func_id"]]
    sums = by_function.groupby(_FORM, dropna=False, as_index=False)[_FIGURES].sum().merge(_named(most, functions), on=_FORM)
    return sums.sort_values(["wall_ns", "hits"], ascending=False, kind="stable", ignore_index=True)


def by_function(table: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """One row per function: hits, wall_ns, and hits of instructions by their state; most time first."""
    sums = table.groupby("func_id", as_index=False)[_FIGURES].sum()
    states = table.pivot_table(index="func_id", columns="state", values="hits", aggfunc="sum", fill_value=0, observed=True)
    states = states.reindex(columns=_SPECIALIZABLE, fill_value=0).astype("int64").reset_index()
    return _named(sums.merge(states, on="func_id"), functions).sort_values(["wall_ns", "hits"], ascending=False, kind="stable", ignore_index=True)


def generic(table: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """The places of instructions that CPython had tried to specialize and could not: func_id, line, opcode, hits, wall_ns and names; most hits first."""
    rows = table[table["state"] == "generic"].drop(columns=["specialized", "state"])
    return _named(rows, functions).sort_values("hits", ascending=False, kind="stable", ignore_index=True)


def shares(table: pd.DataFrame) -> dict[str, int]:
    """Hits of all instructions, and of those that can be specialized by their state."""
    of = table.groupby("state")["hits"].sum()
    return {"hits": int(table["hits"].sum()), **{state: int(of.get(state, 0)) for state in _SPECIALIZABLE}}


def exact_lines(lines: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    """`lines` (schema.LINES) with qualname, file, first_line and module, function by function, there by line, those first that took most time themselves."""
    named = functions[["func_id", "qualname", "file", "first_line", "module"]].merge(lines, on="func_id")
    rank = named.groupby("func_id")["self_ns"].transform("sum")
    order = np.lexsort((named["line"], named["func_id"], -rank))
    return named.iloc[order].reset_index(drop=True)


def _named(rows: pd.DataFrame, functions: pd.DataFrame) -> pd.DataFrame:
    named = rows.merge(functions[["func_id", "qualname", "file", "first_line"]], how="left", on="func_id")
    named["first_line"] = named["first_line"].fillna(-1).astype("int64")
    return named
