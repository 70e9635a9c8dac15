"""What a trace is, in a few facts: target, length, losses, cost, whether it was cut. The head of every view."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.operators import LAYERS
from pytrace_ebpf.trace import schema

Floats = npt.NDArray[np.float64]

# A recorder replaces the manifest about once a second; older than this, nobody is writing any more.
STALE_S = 10.0


def state(path: Path, manifest: dict[str, Any]) -> str:
    """"complete", "recording" (still being written) or "cut" (the tracer ended without finishing it)."""
    if manifest.get("state") == "complete":
        return "complete"
    age = time.time() - (path / schema.MANIFEST).stat().st_mtime
    return "cut" if age > STALE_S else "recording"


def losses(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The windows of the `losses` table as plain rows."""
    rows = table[["class", "start_ns", "end_ns", "count"]].astype({"class": "object"})
    return [{k: v if k == "class" else int(v) for k, v in row.items()} for row in rows.to_dict("records")]


def lost(manifest: dict[str, Any], windows: list[dict[str, Any]]) -> dict[str, int]:
    """Events lost per class: what the manifest counts or, where that is more, the windows."""
    seen = {k: int(v) for k, v in manifest["lost"].items()}
    in_windows: dict[str, int] = {}
    for row in windows:
        in_windows[row["class"]] = in_windows.get(row["class"], 0) + row["count"]
    most = {k: max(seen.get(k, 0), in_windows.get(k, 0)) for k in {**seen, **in_windows}}
    return {k: n for k, n in most.items() if n}


def cost(trace: Any, calls: pd.DataFrame) -> dict[str, Any] | None:
    """What tracing `calls` (with `layer`) cost: source, ns_per_call, total_ns, share_of_wall; None where nobody measured.

    And native_calls, of native layers, with native_ns_per_call; null where these were not measured apart.
    """
    measured, wall = trace.manifest["cost"], trace.end_ns - trace.start_ns
    if measured.get("ns_per_call") is None:
        return None
    each, _ = costs(calls, measured)
    apart = measured.get("native_ns_per_call")
    total = round(float(each.sum()))
    return {
        "source": measured.get("source"),
        "ns_per_call": measured["ns_per_call"],
        "native_calls": None if apart is None else int(calls["layer"].isin(LAYERS).sum()),
        "native_ns_per_call": apart,
        "total_ns": total,
        "share_of_wall": total / wall if wall else None,
    }


def costs(calls: pd.DataFrame, measured: dict[str, Any]) -> tuple[Floats, Floats]:
    """What tracing each of `calls` (with `layer`) cost, and how much of that lies within the call itself, ns, by the manifest's `cost`."""
    each, own = np.full(len(calls), float(measured["ns_per_call"])), np.zeros(len(calls))
    if measured.get("native_ns_per_call") is not None:
        native = calls["layer"].isin(LAYERS).to_numpy()
        each[native], own[native] = measured["native_ns_per_call"], measured["native_own_ns"]
    return each, own


def summary(trace: Any) -> dict[str, Any]:
    """The facts that `report --json` and `info --json` share, of a pytrace_ebpf Trace; plain values, ns integers."""
    manifest = trace.manifest
    windows = losses(trace.losses())
    return {
        "trace": str(trace.directory),
        "format": manifest["format"],
        "format_version": manifest["format_version"],
        "state": state(trace.directory, manifest),
        "start_ns": trace.start_ns,
        "end_ns": trace.end_ns,
        "wall_ns": trace.end_ns - trace.start_ns,
        "target": manifest["target"],
        "host": manifest["host"],
        "sources": manifest["sources"],
        "scheduling": trace.scheduling,
        "native": manifest.get("native"),
        "waited_ns": manifest["cost"].get("waited_ns", 0),
        "processes": len(trace.processes()),
        "threads": len(trace.threads()),
        "lost": lost(manifest, windows),
        "losses": windows,
    }
