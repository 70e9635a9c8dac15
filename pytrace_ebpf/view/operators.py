"""`report --by operator` as a terminal shows it: native code by operator, with what was computed in its time, and by layer."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from pytrace_ebpf.analyze.by_operator import OPERATORS, by_layer, by_operator
from pytrace_ebpf.view import text
from pytrace_ebpf.view.grid import NARROW, grid, rest
from pytrace_ebpf.view.states import states_of

NONE = "No native call was recorded; `--layers torch,blas` of `run` and `attach` records those of PyTorch."
_NAMES = {"operator": "PyTorch's operators", "blas": "BLAS", "cuda": "CUDA"}
_LEAST_SHAPES = 12  # cells below which they say nothing


def found(trace: Any, calls: pd.DataFrame, facts: dict[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """analyze.by_operator's rows, by shapes too where `facts["shapes"]`, the figures of each layer, and the sentence."""
    operators = trace.operators(columns=list(OPERATORS))
    table, layers = by_operator(operators, calls, facts.get("shapes", False)), by_layer(operators, calls)
    return table, {"layers": layers, "sentence": _sentence(table, layers)}


def _sentence(table: pd.DataFrame, layers: list[dict[str, Any]]) -> str | None:
    if not layers or layers[0]["layer"] != "operator" or not table["self_ns"].sum():
        return None
    first = table.iloc[0]
    share = text.percent(first["self_ns"], int(table["self_ns"].sum()))
    what = text.clean(first["name"]) + (f"` of {text.clean(first['library'])}" if text.known(first["library"]) else "`")
    return f"PyTorch's operators took {text.duration(layers[0]['total_ns'])}; of the time of native code {share} is `{what}'s own."


def report(facts: dict[str, Any], table: pd.DataFrame, width: int, ascii_only: bool, top: int) -> list[RenderableType]:
    """One line per row of `table` (see found), then one per layer."""
    if not len(table):
        return [Text(text.fit(NONE, width))]
    states, bar_width, shapes = states_of(facts), 8 if width < NARROW else 10, facts.get("shapes", False)
    columns = [(7, "calls"), (6, "total"), (6, "self"), (6, "share"), (7, "workers"), (7, "GFLOP/s"), (6, "FLOP/B")]
    if shapes:
        columns = [column for column in columns if column[1] not in ("total", "workers")]
    fixed = [(bar_width, ""), *columns]
    room = rest(width, fixed)
    out = grid([*fixed, (room, "  operator")], left={0, len(fixed)})
    longest, whole = int(table["self_ns"].max()), int(table["self_ns"].sum())
    for row in table.head(top).to_dict("records"):
        cells = {
            "calls": text.count(row["calls"], 7), "total": text.duration(row["total_ns"]), "self": text.duration(row["self_ns"]),
            "share": text.percent(row["self_ns"], whole), "workers": text.duration(row["worker_on_cpu_ns"]),
            "GFLOP/s": giga(row["flops_per_s"]), "FLOP/B": _intensity(row),
        }  # fmt: skip
        bar = text.bar(row, bar_width, ascii_only, "self_", longest, states)
        out.add_row(bar, *(cells[title] for _, title in columns), Text("  ") + _name(row, room - 2))
    title = "Operators by self time" + (" and shapes" if shapes else "")
    note = f"   {min(top, len(table)):,} of {len(table):,}; bar and share are of self time"
    return [Text.assemble((title, "bold"), text.fit(note, width - len(title))), out, Text(), *_layers(facts["layers"], width)]


def _name(row: dict[str, Any], width: int) -> Text:
    name = text.clean(row["name"]) + (f".{text.clean(row['overload'])}" if row.get("overload") else "")
    name = text.fit(name + (f" ({text.clean(row['library'])})" if text.known(row["library"]) else ""), width)
    room = width - len(name) - 2
    shapes = row.get("shapes")
    known = text.known(shapes) and shapes and room >= _LEAST_SHAPES
    return Text.assemble(name, "  ", (text.fit(shapes, room), "bright_black")) if known else Text(name)


def _layers(layers: list[dict[str, Any]], width: int) -> list[RenderableType]:
    fixed = [(9, "calls"), (6, "total"), (6, "self"), (7, "workers"), (7, "GFLOP"), (7, "GFLOP/s")]
    room = rest(width, fixed)
    out = grid([*fixed, (room, "  layer")], left={len(fixed)})
    for row in layers:
        out.add_row(
            text.count(row["calls"]), text.duration(row["total_ns"]), text.duration(row["self_ns"]), text.duration(row["worker_on_cpu_ns"]),
            giga(row["flops"]), giga(row["flops_per_s"]), Text("  " + text.fit(_NAMES[row["layer"]], room - 2)),
        )  # fmt: skip
    note = "   each operation is counted once in its layer"
    return [Text.assemble(("Layers of native code", "bold"), text.fit(note, width - 21)), out]


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
