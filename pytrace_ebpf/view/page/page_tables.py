"""What a page has of each other report: its rows, in plain values, and the matrices of the GIL and the cores."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view.by import BY
from pytrace_ebpf.view.names import PLACE, named, plain
from pytrace_ebpf.view.requests import of_these
from pytrace_ebpf.view.text import clean
from pytrace_ebpf.view.waits import with_locks_as_one

_MOST_ROWS = 500
_OTHERS = (
    "thread",
    "wait",
    "gil",
    "core",
    "request",
    "task",
    "operator",
    *dict.fromkeys(stream.by for stream in STREAMS if stream.report and stream.in_page),
)


def tables(trace: Any, tree: pd.DataFrame, facts: dict[str, Any]) -> dict[str, Any]:
    """By the name of the report (view.by.BY): `rows`, the first ones; `count`, of how many; `sentence`; and what else that report has found."""
    found = {name: _table(trace, tree, facts | {"by": name, "sentence": None}, name) for name in _OTHERS if _has(trace, facts, name)}
    return found | {"resource": _resources(found["wait"].pop("all_rows"))} if "wait" in found else found


def _has(trace: Any, facts: dict[str, Any], name: str) -> bool:
    """Whether a trace can have any of it: what was not recorded is not derived."""
    manifest, switches = trace.manifest, facts["scheduling"]["source"] in ("bpf", "perf")
    recorded = {
        "wait": switches and not facts["sampled"],
        "gil": facts["scheduling"]["source"] == "bpf" and not facts["sampled"],
        "core": switches and not facts["sampled"],
        "request": not facts["sampled"],
        "client": any(segment["rows"].get("client_calls") for segment in trace.segments),
        "operator": bool(manifest["options"].get("layers")),
    }
    of_it = [stream for stream in STREAMS if stream.by == name]
    return bool(recorded.get(name, not of_it or any(stream.is_in(manifest) for stream in of_it)))


def _table(trace: Any, tree: pd.DataFrame, facts: dict[str, Any], name: str) -> dict[str, Any]:
    asked = facts.get("requests") or ()
    rows, more = BY[name].found(trace, tree, facts | {"shapes": False, "requests": asked, "slowest": 0, "at_most": _MOST_ROWS})
    more |= _longest(trace, asked) if name == "request" else {}
    if name == "wait":
        more, rows = more | {"all_rows": rows}, with_locks_as_one(rows)
        return {"rows": harmless(plain(rows.head(_MOST_ROWS))), "count": len(rows), "sentence": more.pop("sentence", None), **more}
    return {"rows": harmless(plain(rows.head(_MOST_ROWS))), "count": len(rows), "sentence": more.pop("sentence", None), **harmless(more)}


def _resources(waits: pd.DataFrame) -> dict[str, Any]:
    """`rows`: by resource that was waited for, the longest first: resource, syscalls, waits, total_ns, longest_ns, and the function that waited for it most."""
    known = waits[waits["resource"].notna()].sort_values("total_ns", ascending=False, kind="stable")
    sums = (
        known.groupby("resource", sort=False)
        .agg(waits=("waits", "sum"), total_ns=("total_ns", "sum"), longest_ns=("longest_ns", "max"))
        .reset_index()
    )
    calls = known.groupby("resource")["syscall"].agg(lambda names: ", ".join(sorted(set(names.dropna()))))
    rows = sums.assign(syscalls=sums["resource"].map(calls)).merge(known.drop_duplicates("resource")[["resource", *PLACE]], on="resource")
    rows = rows.sort_values("total_ns", ascending=False, kind="stable")
    return {"rows": harmless(plain(rows.head(_MOST_ROWS))), "count": len(rows), "sentence": None}


def _longest(trace: Any, patterns: Sequence[str]) -> dict[str, Any]:
    """`longest`: requests one by one, start_ns from the begin of what is shown; `all`: of how many."""
    requests = of_these(trace.requests(patterns=patterns), trace.functions(), patterns).drop_duplicates("request_id")
    rows = requests.sort_values("wall_ns", ascending=False, kind="stable").head(_MOST_ROWS)
    rows = rows.assign(func_id=rows["endpoint_func_id"], start_ns=rows["start_ns"] - trace.start_ns)
    columns = ["pid", "tid", "start_ns", "wall_ns", "awaited_ns", *SPLIT, "func_id"]
    return {"longest": plain(named(rows[columns], trace.functions())), "all": len(requests)}


def harmless(value: Any) -> Any:
    """`value` as JSON has it: without control characters, and of lists the first _MOST_ROWS."""
    if isinstance(value, dict):
        return {str(key): harmless(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [harmless(each) for each in value[:_MOST_ROWS]]
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "tolist"):
        return harmless(value.tolist())
    return value if isinstance(value, int) or value == value else None
