"""`report --by wait` as a terminal shows it: what was waited for, how long, in which function, and for whom."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.functions.collapsed import in_imports_alone
from pytrace_ebpf.analyze.waits.by_wait import QUOTA, WAITS, by_wait
from pytrace_ebpf.analyze.waits.rivals import main_rivals
from pytrace_ebpf.trace.client_functions import pool_of
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import Listing
from pytrace_ebpf.view.names import PLACE, in_full, named
from pytrace_ebpf.view.only import Only, of_calls
from pytrace_ebpf.view.order import ordered
from pytrace_ebpf.view.states import samples_tell, unrecorded

IMPORTS = "imports"  # the kind of waits in functions that imports alone call
_LOCKS = 3  # of one function, from which on they are one row
_MANY = 0.25  # of the time: who is there for less of it is one of many


def before(trace: Any) -> None:
    """Derive the waits."""
    trace.whole.derive("waits")


def _sampled(facts: dict[str, Any]) -> bool:
    """Whether samples alone say what threads waited for."""
    return samples_tell(facts) and facts["scheduling"]["source"] is None


def found(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.waits.by_wait's rows of a Trace with the names of their functions. Of samples alone sampled_waits.found's."""
    if _sampled(facts):
        from pytrace_ebpf.view import sampled_waits  # the report by function has waits in its sentence, and none of samples

        return sampled_waits.found(trace)
    parts = trace.waits_by_part((*WAITS, "own_func_id"))
    if chosen := of_calls(facts.get("only"), "wait"):
        parts = _narrowed(trace, parts, chosen)
    elif not facts.get("imports") and len(ids := in_imports_alone(tree if "node_id" in tree else trace.tree(), trace.functions())):
        parts = (_with_imports_as_one(part, ids) for part in parts)
    rivals = partial(main_rivals, trace) if trace.rivals_known else None
    table = by_wait(parts, trace.whole.threads(), trace.neighbours(), trace.resources(), rivals)
    functions = trace.functions()
    table = named(named(table, functions), functions, "partner_")
    primitives = [table[f"{side}primitive_func_id"] for side in ("", "partner_")]
    names = in_full(functions, *primitives)
    called = {f"{side}primitive": own.map(names) for side, own in zip(("", "partner_"), primitives, strict=True)}
    called["primitive"] = _of_pools(called["primitive"], table["func_id"].map(functions.set_index("func_id")["module"]))
    return table.assign(**called), {}


def _of_pools(primitive: "pd.Series[Any]", modules: "pd.Series[Any]") -> "pd.Series[Any]":
    """What was called to wait, with the pool that the function which did so is of."""
    pools = modules.map(lambda module: pool_of(module) if isinstance(module, str) else None)
    of_pool = pools.notna() & primitive.notna()
    return primitive.mask(of_pool, pools[of_pool] + ": " + primitive[of_pool]) if of_pool.any() else primitive


def _with_imports_as_one(part: pd.DataFrame, ids: "np.ndarray[Any, np.dtype[np.int64]]") -> pd.DataFrame:
    """Waits, of which those in functions that imports alone call (`ids`) are of one kind, and of nobody."""
    in_imports = part["func_id"].isin(ids)
    out = part.assign(kind=part["kind"].astype("object").mask(in_imports & (part["kind"] != "preempted"), IMPORTS))
    of_it = out["kind"] == IMPORTS
    nobody = dict.fromkeys(
        ("func_id", "primitive_func_id", "caller_func_id", "holder_func_id", "waker_caller_func_id", "waker_primitive_func_id"), -1
    )
    nothing = {"syscall": None, "lock_address": pd.NA, "resource_id": 0, **nobody}
    return out.assign(
        **{
            name: out[name].astype("object").mask(of_it, value).astype("object" if name == "syscall" else out[name].dtype)
            for name, value in nothing.items()
        }
    )


def _narrowed(trace: Any, parts: Iterable[pd.DataFrame], chosen: Only) -> Iterator[pd.DataFrame]:
    """The waits that were asked for; of own code as its function's that called what waits."""
    whose = chosen.func_ids(trace.functions())
    for part in parts:
        if chosen.kind == "own":
            part = part[part["own_func_id"] >= 0]
            yield part.assign(func_id=part["own_func_id"], caller_func_id=part["own_func_id"])
        else:
            yield part[part[["own_func_id", "func_id", "caller_func_id"]].isin(whose).any(axis=1)]


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found)."""
    if _sampled(facts):
        from pytrace_ebpf.view import sampled_waits

        return sampled_waits.report(table, width, top)
    if not len(table):
        recorded = facts["scheduling"]["source"] in ("bpf", "perf")
        return [Text("No thread was seen to wait." if recorded else f"What the threads waited for is not known without {unrecorded(facts)}.")]
    table = ordered(with_locks_as_one(table), facts)
    fixed = [(7, "waits"), (6, "total"), (6, "queued"), (7, "longest")]
    shown = Listing(width, fixed, ["what", "mostly in", "mostly for"])
    for row in table.head(top).to_dict("records"):
        shown.add(
            [text.count(row["waits"], 7), text.duration(row["total_ns"]), text.duration(row["queued_ns"]), text.duration(row["longest_ns"])],
            partial(text.waited_for, row),
            partial(_where, row),
            partial(_partner, row),
        )
    note = f"{min(top, len(table)):,} of {len(table):,}; queued: of the total, runnable but without a core"
    return [text.title("What the threads waited for", note, width), shown]


def with_locks_as_one(rows: pd.DataFrame) -> pd.DataFrame:
    """By wait, the locks of one function, or of no Python call, as one row where they are several: their addresses say nothing to anybody."""
    is_lock = rows["lock_address"].notna()
    place = rows[list(PLACE)].astype("object").fillna("").apply(tuple, axis=1)
    several = is_lock & (is_lock.groupby(place).transform("sum") >= _LOCKS)
    if not several.any():
        return rows
    ones = [_one_of_locks(some) for _, some in rows[several].groupby(place[several])]
    return pd.concat([rows[~several], *ones], ignore_index=True).sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)


def _one_of_locks(some: pd.DataFrame) -> pd.DataFrame:
    """Locks of one function as one row; for whom is that of the longest."""
    shares = {name: some[name].sum() for name in ("waits", "total_ns", "partner_ns", "partner_func_ns")}
    where = "" if some["qualname"].notna().any() else " outside of Python"
    return some.iloc[:1].assign(
        primitive=f"{len(some):,} locks{where}", lock_address=pd.NA, queued_ns=some["queued_ns"].sum(min_count=1), longest_ns=some["longest_ns"].max(), **shares
    )  # fmt: skip


def _where(row: dict[str, Any], width: int) -> Text:
    if row["kind"] == IMPORTS:
        return Text("(--imports shows what they call)", "dim")
    if not text.known(row["qualname"]):
        return Text("(no Python call)", "dim")
    return text.function(row["qualname"], row["file"], row["first_line"], width)


def _partner(row: dict[str, Any], width: int) -> Text:
    """The main partner in `width` cells, by its function where that is known; and how much of the total is its, where that is not all."""
    if text.known(row["partner_qualname"]) and row["partner_func_ns"] >= _MANY * row["total_ns"]:
        share = _share(row["partner_func_ns"], row["total_ns"])
        qualname, file, line = (row[f"partner_{name}"] for name in PLACE)
        said = f"{row['partner_primitive']} by {qualname}" if text.known(row["partner_primitive"]) else qualname
        return text.function(said, file, line, width - len(share)) + share
    if row["partner_ns"] < _MANY * row["total_ns"]:
        return Text("many")
    name, number = "(not known)", ""
    if row["partner_tid"] == 0:
        name = {"gil": "(nobody)", "preempted": "(nobody)", QUOTA: "(its control group)"}.get(row["kind"], "(timer, device)")
    elif row["partner_tid"] > 0:
        name = text.clean(row["partner_name"]) if text.known(row["partner_name"]) else "thread"
        number = f" {row['partner_tid']}"
    share = _share(row["partner_ns"], row["total_ns"])
    return Text(text.fit(name, width - len(number) - len(share)) + number + share)


def _share(part: int, whole: int) -> str:
    share = text.percent(part, whole)
    return f" {share}" if share != "100 %" else ""
