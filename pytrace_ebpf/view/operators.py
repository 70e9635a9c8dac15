"""`report --by operator` as a terminal shows it: native code by operator, with what was computed in its time, and by layer."""

from functools import partial
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.functions.by_function import with_self
from pytrace_ebpf.analyze.native.around import joined, native_by_part
from pytrace_ebpf.analyze.native.by_operator import COLUMNS, by_operator
from pytrace_ebpf.trace.layers import NATIVE
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, Listing
from pytrace_ebpf.view.states import states_of

_UNRECORDED = "Native calls were not recorded; `--layers torch,blas` of `run` and `attach` records those of PyTorch."
_NONE = "No native call was made while this was recorded."
_NAMES = {layer.name: layer.title for layer in NATIVE}
_LEAST_SHAPES = 12  # cells below which they say nothing


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.native.by_operator's rows, by shapes too where `facts["shapes"]`, the figures of each layer, and the sentence."""
    parts = [joined(trace.operators(), with_self(calls))] if facts.get("compensated") else native_by_part(trace, COLUMNS)
    table, layers = by_operator(parts, facts.get("shapes", False))
    if facts.get("sort") == "total":
        table = table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    unseen = _NONE if trace.manifest["options"].get("layers") else _UNRECORDED
    return table, {"layers": layers, "sentence": _sentence(table, layers) if len(table) else unseen}


def _sentence(table: pd.DataFrame, layers: list[dict[str, Any]]) -> str | None:
    if not layers or layers[0]["layer"] != "operator" or not table["self_ns"].sum():
        return None
    first = table.iloc[0]
    share = text.percent(first["self_ns"], int(table["self_ns"].sum()))
    what = f"`{text.clean(first['name'])}`" + (f" ({text.clean(first['library'])})" if text.known(first["library"]) else "")
    return f"PyTorch's operators took {text.duration(layers[0]['total_ns'])}; {share} of the time of native code is {what} itself."


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found), then one per layer."""
    if not len(table):
        return []
    states, bar_width, shapes = states_of(facts), 8 if width < NARROW else 10, facts.get("shapes", False)
    columns = [(7, "calls"), (6, "total"), (6, "self"), (6, "share"), (7, "workers"), (7, "GFLOP/s"), (6, "FLOP/B")]
    if shapes:
        columns = [column for column in columns if column[1] not in ("total", "workers")]
    fixed = [(bar_width, ""), *columns]
    out = Listing(width, fixed, ["operator"], may_go=("FLOP/B", "workers"))
    longest, whole = int(table["self_ns"].max()), int(table["self_ns"].sum())
    for row in table.head(top).to_dict("records"):
        cells = {
            "calls": text.count(row["calls"], 7), "total": text.duration(row["total_ns"]), "self": text.duration(row["self_ns"]),
            "share": text.percent(row["self_ns"], whole), "workers": text.duration(row["worker_on_cpu_ns"]),
            "GFLOP/s": giga(row["flops_per_s"]), "FLOP/B": _intensity(row),
        }  # fmt: skip
        bar = text.bar(row, bar_width, ascii_only, "self_", longest, states)
        out.add([bar, *(cells[title] for _, title in columns)], partial(_name, row))
    title = f"Operators by {facts.get('sort') or 'self'} time" + (" and shapes" if shapes else "")
    note = f"{min(top, len(table)):,} of {len(table):,}; bar and share are of self time"
    return [text.title(title, note, width), out, Text(), *_layers(facts["layers"], width)]


def _name(row: dict[str, Any], width: int) -> Text:
    name = text.clean(row["name"]) + (f".{text.clean(row['overload'])}" if row.get("overload") else "")
    name = text.fit(name + (f" ({text.clean(row['library'])})" if text.known(row["library"]) else ""), width)
    room = width - len(name) - 2
    shapes = row.get("shapes")
    known = text.known(shapes) and shapes and room >= _LEAST_SHAPES
    return Text.assemble(name, "  ", (text.fit(shapes, room), "dim")) if known else Text(name)


def _layers(layers: list[dict[str, Any]], width: int) -> list[RenderableType]:
    fixed = [(9, "calls"), (6, "total"), (6, "self"), (7, "workers"), (7, "GFLOP"), (7, "GFLOP/s")]
    out = Listing(width, fixed, ["layer"], may_go=("workers",))
    for row in layers:
        times = (text.duration(row[key]) for key in ("total_ns", "self_ns", "worker_on_cpu_ns"))
        figures = [text.count(row["calls"]), *times, giga(row["flops"]), giga(row["flops_per_s"])]
        out.add(figures, partial(text.fit, _NAMES[row["layer"]]))
    return [text.title("Layers of native code", "each operation is counted once in its layer", width), out]


def giga(number: Any) -> str:
    """So many times 10^9 with three figures; "-" for null."""
    if not text.known(number):
        return text.NOTHING
    value = float(number) / 1e9
    if value >= 1e5:
        return f"{value / 1e3:.0f}k"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.01 or not value else "<0.01"


def _intensity(row: dict[str, Any]) -> str:
    """Operations for each byte of its tensors."""
    if not text.known(row["flops"]) or not text.known(row["bytes"]) or not row["bytes"]:
        return text.NOTHING
    value = int(row["flops"]) / int(row["bytes"])
    return f"{value:.0f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.01 or not value else "<0.01"
