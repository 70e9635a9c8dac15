"""What a trace is, in a few facts: target, length, losses, cost, whether it was cut. The head of every view."""

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions import checks
from pytrace_ebpf.analyze.functions.left_out import left_out
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.trace.layers import NATIVE_NAMES
from pytrace_ebpf.trace.schema import AGENT
from pytrace_ebpf.view.ended import COLUMNS
from pytrace_ebpf.view.identities import identities

Floats = npt.NDArray[np.float64]

# A recorder replaces the manifest after each segment; older than this, or than three of them, nobody is writing any more.
STALE_S, _STALE_SEGMENTS = 10.0, 3


def state(trace: Any) -> str:
    """ "complete", "recording" (still being written) or "cut" (the tracer ended without finishing it)."""
    if trace.manifest["state"] == "complete":
        return "complete"
    last_ns = max((segment["end_ns"] - segment["start_ns"] for segment in trace.segments[-1:]), default=0)
    return "cut" if time.time() - trace.written_at > max(STALE_S, _STALE_SEGMENTS * last_ns / 1e9) else "recording"


def losses(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The windows of the `losses` table as plain rows."""
    rows = table.astype(object).where(table.notna(), None)
    return [{k: v if k == "class" or v is None else int(v) for k, v in row.items()} for row in rows.to_dict("records")]


def lost(manifest: dict[str, Any], windows: list[dict[str, Any]]) -> dict[str, int]:
    """Events lost per class: what the manifest counts or, where that is more, the windows."""
    seen = {k: int(v) for k, v in manifest["lost"].items()}
    in_windows: dict[str, int] = {}
    for row in windows:
        in_windows[row["class"]] = in_windows.get(row["class"], 0) + row["count"]
    most = {k: max(seen.get(k, 0), in_windows.get(k, 0)) for k in {**seen, **in_windows}}
    return {k: n for k, n in most.items() if n}


def interpreters(processes: pd.DataFrame, threads: pd.DataFrame) -> list[dict[str, Any]]:
    """The processes that made interpreters beside their main one: pid, source, python_version, how many `others`, and calls of how many of these are `recorded` by the agent."""
    several = processes[(processes["interpreters"] > 1) & processes["source"].notna()]
    ids = threads.groupby("pid")["interpreters"].agg(lambda of: len({number for each in of for number in each.split()}))
    recorded = several["pid"].map(ids).fillna(0).astype("int64")
    rows = several.assign(others=several["interpreters"] - 1, recorded=recorded)[["pid", "source", "python_version", "others", "recorded"]]
    return [{k: v if isinstance(v, str) else int(v) for k, v in row.items()} for row in rows.astype(object).to_dict("records")]


def ends(processes: pd.DataFrame) -> list[dict[str, Any]]:
    """How processes ended of which that is known: view.ended's columns."""
    rows = processes.loc[processes["exit_signal"].notna(), list(COLUMNS)].astype(object)
    return [{k: int(v) if isinstance(v, np.integer) else v for k, v in row.items()} for row in rows.where(rows.notna(), None).to_dict("records")]


def _with_earlier(targets: list[dict[str, Any]], processes: pd.DataFrame) -> list[dict[str, Any]]:
    """Targets of the manifest, each with the command lines of what it was before: schema.PROCESSES' earlier_commands, [] where none are known."""
    rows = processes.loc[processes["earlier_commands"].notna(), ["pid", "earlier_commands"]]
    earlier = {int(pid): [str(command) for command in commands] for pid, commands in rows.itertuples(index=False)}
    return [target | {"earlier_commands": earlier.get(target.get("pid", 0), [])} for target in targets]


def left_out_rows(trace: Any) -> list[dict[str, Any]]:
    """analyze.functions.left_out's rows as plain ones."""
    table = left_out(trace.left_out(), trace.functions(), trace.start_ns, trace.end_ns)
    return [row | {"calls_per_s": round(row["calls_per_s"])} for row in table.astype(object).where(table.notna(), None).to_dict("records")]


def trigger(trace: Any) -> dict[str, Any] | None:
    """What set a flight recorder off, as the manifest has it, with `trace_start_ns` and the `thread`'s name, null where that is not known.

    None for any other trace.
    """
    found = trace.manifest.get("trigger")
    if not found:
        return None
    threads = trace.threads()
    names = threads.loc[(threads["pid"] == found["pid"]) & (threads["tid"] == found["tid"]), "name"]
    return {
        "start_ns": None,
        "end_ns": None,
        "waited_ns": None,
        **found,
        "trace_start_ns": trace.whole.start_ns,
        "thread": str(names.iloc[-1]) if len(names) else None,
    }


def price(manifest: dict[str, Any]) -> float | None:
    """What tracing a call cost in the mean, ns: what was measured, or less where that would be more than the programs used; None where nobody measured."""
    measured = manifest["cost"]
    ns, calls, spent = (measured.get(key) for key in ("ns_per_call", "calls", "spent_ns"))
    return ns if not ns or not calls or spent is None else min(ns, spent / calls)


def cost(trace: Any, calls: "pd.Series[int]", on_cpu_ns: int | None = None) -> dict[str, Any] | None:
    """What tracing so many calls per layer (schema.LAYERS) cost: source, ns_per_call, total_ns of CPU time, share_of_wall; None where nobody measured.

    And cpu_ns, which the programs used (`on_cpu_ns`: in calls, at least), with share_of_cpu: total_ns is never above it. Null where it is not known.
    loop_ns_per_call is what it costs in a small loop, where ns_per_call was measured in the programs, by so many events as `timed` says; else both are null.
    And native_calls, of native layers, with native_ns_per_call; null where these were not measured apart. Likewise lines: about so many, as events that are
    of no call. other_ns is what no call is charged for: up to 3.11 Python's other code is slower.
    """
    measured, wall = trace.manifest["cost"], trace.end_ns - trace.start_ns
    if (each := price(trace.manifest)) is None:
        return None
    apart = measured.get("native_ns_per_call")
    native = int(calls[calls.index.isin(NATIVE_NAMES)].sum())
    alike = int(calls.sum()) - (0 if apart is None else native)
    per_line = measured.get("ns_per_line")
    events = sum(segment["rows"].get("events", 0) for segment in trace.segments)
    lines = None if per_line is None else max(0, events - 2 * int(calls.sum()))
    other = _charged_to_no_call(measured, alike)
    total = round(alike * each + (0 if apart is None else native * apart) + (lines or 0) * (per_line or 0)) + other
    cpu = measured.get("cpu_ns") if trace.whole is trace else None
    cpu = on_cpu_ns if cpu is None else max(cpu, on_cpu_ns or 0)
    total = total if cpu is None else min(total, cpu)
    return {
        "source": measured.get("source"),
        "ns_per_call": each,
        "loop_ns_per_call": measured.get("loop_ns_per_call"),
        "timed": measured.get("timed"),
        "native_calls": None if apart is None else native,
        "native_ns_per_call": apart,
        "lines": lines,
        "ns_per_line": per_line,
        "values": bool(trace.manifest["events"].get("value")),
        "opcodes": bool((trace.manifest["options"].get("filters") or {}).get("opcodes")),
        "other_ns": other,
        "total_ns": total,
        "share_of_wall": total / wall if wall else None,
        "cpu_ns": cpu,
        "share_of_cpu": total / cpu if cpu else None,
    }


def _charged_to_no_call(measured: dict[str, Any], calls: int) -> int:
    """Of what was spent while so many of the calls were made."""
    of, spent = measured.get("calls"), measured.get("spent_ns")
    return round(min(1.0, calls / of) * max(0.0, spent - of * measured["ns_per_call"])) if of and spent is not None else 0


def costs(calls: pd.DataFrame, manifest: dict[str, Any]) -> tuple[Floats, Floats]:
    """What tracing each of `calls` (with `layer`) cost, and how much of that lies within the call itself, ns, by the manifest."""
    measured = manifest["cost"]
    each, own = np.full(len(calls), float(price(manifest) or 0)), np.zeros(len(calls))
    if measured.get("native_ns_per_call") is not None:
        native = calls["layer"].isin(NATIVE_NAMES).to_numpy()
        each[native], own[native] = measured["native_ns_per_call"], measured.get("native_own_ns") or 0
    return each, own


def wrong_sums(trace: Any, table: pd.DataFrame, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The rules of analyze.functions.checks that a report's rows break, as plain rows (rule, rows, off, unit); `facts` has calls and split."""
    source = trace.scheduling["source"]
    estimated = source == "cputime" or (source is None and facts.get("by") == "thread")  # of samples
    return [asdict(wrong) for wrong in checks.wrong_sums(table, facts["split"], facts["calls"], estimated)]


def _sampled(trace: Any, period: int) -> dict[str, Any]:
    from pytrace_ebpf.view.sampled import counted  # what reads samples is not needed for calls

    return counted(trace, period)


def summary(trace: Any) -> dict[str, Any]:
    """The facts that `report --json` and `info --json` share, of a pytrace_ebpf Trace; plain values, ns integers."""
    manifest = trace.manifest
    windows, processes = losses(trace.losses()), trace.processes()
    return {
        "trace": str(trace.directory),
        "format": manifest["format"],
        "format_version": manifest["format_version"],
        "state": state(trace),
        "start_ns": trace.start_ns,
        "end_ns": trace.end_ns,
        "wall_ns": trace.end_ns - trace.start_ns,
        "target": _with_earlier([manifest["target"]], processes)[0],
        "targets": _with_earlier(manifest.get("targets", []), processes),
        **({"left_alone": manifest["left_alone"]} if manifest.get("left_alone") else {}),
        "host": manifest["host"],
        "sources": manifest["sources"],
        "scheduling": trace.scheduling,
        "sampled": _sampled(trace, period) if (period := period_of(trace)) else None,
        "native": manifest.get("native"),
        "waited_ns": manifest["cost"].get("waited_ns", 0),
        "sampling_ns": manifest["cost"].get("sampling_ns"),
        "processes": len(processes),
        "identities": identities(processes),
        "ends": ends(processes),
        "interpreters": interpreters(processes, trace.threads()),
        "threads": int((trace.threads()["name"] != AGENT).sum()),
        "ended": manifest.get("ended"),
        "dropped": manifest.get("dropped"),
        "trigger": trigger(trace),
        "left_out": left_out_rows(trace),
        "budget": manifest["options"].get("budget"),
        "lost": lost(manifest, windows),
        "patterns": manifest.get("patterns") or [],
        "losses": windows,
    }
