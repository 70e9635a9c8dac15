"""Where a training step of a network goes: by phase, by nn.Module, by operator; what its layers of calls look like, and what memory each phase takes.

Trains an image CNN, an RNN, a GAN, a ResNet and a MobileNet (scripts/workloads) on one thread, each twice: once for
times, and once in large batches with many samples of its memory.
"""

import argparse
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from recording import COLOURS, WORKLOADS, Report, directory, machine, ms, named_calls, plain, record, say, waiting

from pytrace_ebpf.analyze.functions.named_layers import enclosing, named_layers, parent_rows
from pytrace_ebpf.analyze.native.torch_graph import forwards, graph
from pytrace_ebpf.cli.main import main as pytrace
from pytrace_ebpf.derive.calls.preorder import outermost
from pytrace_ebpf.trace.reader import Trace

NETWORKS = ("image_cnn", "rnn", "gan", "resnet", "mobilenet")
# Batches in which a phase is long compared with the time between two samples of memory.
LARGE = {"image_cnn": 512, "rnn": 4096, "gan": 2048, "resnet": 256, "mobilenet": 256}
SAMPLE_S = 0.05
PHASES = ("data", "forward", "loss", "backward", "optimizer")
FUNCTIONS = {"load_batch": "data", "backward": "backward", "step": "optimizer"}  # of scripts/workloads/training.py: the phase each is
LAYERS = ("module", "operator", "blas")  # of the picture, below the phases
SHOWN = 8
NARROW = 0.0004  # of the picture's width: what is narrower is not drawn


def phases(trace: Trace) -> pd.DataFrame:
    """Every phase of training in the order of time: phase, step (from 0), start_ns, end_ns, wall_ns, on_cpu_ns.

    forward and loss are calls of nn.Modules that no other nn.Module called; a step lasts from the data's start to the next one's, the
    last to the end of its epoch.
    """
    found = named_calls(trace, [*FUNCTIONS, "train_epoch"])
    epochs, found = found[found["qualname"] == "train_epoch"], found.assign(qualname=found["qualname"].replace(FUNCTIONS))
    outer = forwards(trace)
    outer = outer.merge(trace.calls(columns=["call_id", "end_ns", "on_cpu_ns"]), on="call_id")
    outer["qualname"] = np.where(outer["name"].str.endswith("Loss"), "loss", "forward")
    rows = pd.concat([found[found["qualname"] != "train_epoch"], outer])[["qualname", "start_ns", "end_ns", "wall_ns", "on_cpu_ns"]]
    inside = [bool(((epochs["start_ns"] <= start) & (start < epochs["end_ns"])).any()) for start in rows["start_ns"]]
    rows = rows[inside].sort_values("start_ns", ignore_index=True).rename(columns={"qualname": "phase"})
    rows["step"] = (rows["phase"] == "data").cumsum() - 1
    return rows[rows["step"] >= 0].astype({"on_cpu_ns": float}).reset_index(drop=True)


def steps(trace: Trace, rows: pd.DataFrame) -> pd.DataFrame:
    """Start and end of each step: start_ns, end_ns, by step."""
    epochs = named_calls(trace, ["train_epoch"])
    starts = np.sort(rows.loc[rows["phase"] == "data", "start_ns"].to_numpy())
    ends = np.sort(np.concatenate((starts[1:], epochs["end_ns"].to_numpy())))
    return pd.DataFrame({"start_ns": starts, "end_ns": ends[np.searchsorted(ends, starts, side="right")]})


def by_phase(trace: Trace, rows: pd.DataFrame) -> pd.DataFrame:
    """Medians over the steps but the first: by phase on_cpu_ns, wall_ns, and share of the step's time on CPU; the rest as "other"."""
    bounds = steps(trace, rows)
    epochs = named_calls(trace, ["train_epoch"])
    sums = rows[rows["step"] > 0].groupby(["step", "phase"])[["on_cpu_ns", "wall_ns"]].sum().unstack(fill_value=0.0)
    out = sums.median().unstack(0).reindex([phase for phase in PHASES if phase in set(rows["phase"])])
    known = rows.groupby("step")["on_cpu_ns"].sum()
    other = max(float(epochs["on_cpu_ns"].sum()) - float(known.sum()), 0.0) / len(bounds)
    out.loc["other"] = {"on_cpu_ns": other, "wall_ns": np.nan}
    return out.assign(share=out["on_cpu_ns"] / out["on_cpu_ns"].sum())


def by_operator(trace: Trace, since_ns: int, count: int) -> pd.DataFrame:
    """Operators and functions of BLAS from `since_ns` on, for each of `count` steps: calls, own_ns (CPU time, most first); whole_ns and flops with those below."""
    calls = trace.calls(columns=["call_id", "last_descendant_id", "self_on_cpu_ns"])
    rows = trace.operators(columns=["call_id", "pid", "tid", "name", "start_ns", "on_cpu_ns", "flops"], start_ns=since_ns).merge(calls, on="call_id")
    rows = rows[rows["start_ns"] >= since_ns].astype({"name": object, "self_on_cpu_ns": float, "on_cpu_ns": float, "flops": "Float64"})
    return _summed(rows.assign(own_ns=rows["self_on_cpu_ns"]), count)


def by_module(trace: Trace, tid: int, since_ns: int, count: int) -> pd.DataFrame:
    """The same of nn.Modules in the forward pass, by class; own time is without the nn.Modules in it."""
    modules = named_layers(trace.calls(tid=tid), trace.functions())["module"].astype({"on_cpu_ns": float})
    inner = modules.groupby("in_module")["on_cpu_ns"].sum()
    modules = modules.assign(
        own_ns=modules["on_cpu_ns"] - modules["call_id"].map(inner).fillna(0.0), name=modules["qualname"].str.removesuffix(".forward")
    )
    return _summed(modules[modules["start_ns"] >= since_ns].assign(flops=pd.NA), count)


def _summed(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """By name; of a call in another of the same name only its own time is added."""
    rows = rows.reset_index(drop=True)
    whole = rows[outermost(rows, rows.groupby("name").ngroup().to_numpy(np.int64))].groupby("name")
    out = rows.groupby("name").agg(calls=("own_ns", "size"), own_ns=("own_ns", "sum"))
    out["whole_ns"], out["flops"] = whole["on_cpu_ns"].sum(), whole["flops"].sum(min_count=1)
    return (out / count).sort_values("own_ns", ascending=False)


def memory(trace: Trace, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What resident memory does in each phase: by phase growth (bytes, median over the steps but the first) and samples (in it, a step).

    Memory is sampled, and taken for straight between two samples. Also the samples: ts, rss_bytes.
    """
    usage = trace.usage()
    seen = usage[usage["kind"].astype("object") == "process"][["ts", "rss_bytes"]].dropna().sort_values("ts").astype(float)
    ts, rss = seen["ts"].to_numpy(), seen["rss_bytes"].to_numpy()
    start, end = rows["start_ns"].to_numpy(float), rows["end_ns"].to_numpy(float)
    rows = rows.assign(growth=np.interp(end, ts, rss) - np.interp(start, ts, rss), samples=np.searchsorted(ts, end) - np.searchsorted(ts, start))
    later = rows[rows["step"] > 0]
    sums = later.groupby(["step", "phase"])[["growth", "samples"]].sum().unstack(fill_value=0.0)
    first = rows[rows["step"] == 0].groupby("phase")["growth"].sum()
    out = sums.median().unstack(0).reindex([phase for phase in PHASES if phase in set(rows["phase"])])
    return out.assign(first=first), seen


def boxes(trace: Trace, start: int, end: int, tid: int, rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The layers of one step: phases, and of each of LAYERS the calls, with `lane`, how many of the same layer they lie in."""
    calls = trace.calls(tid=tid, start_ns=start, end_ns=end)
    named = named_layers(calls, trace.functions())
    parent = parent_rows(calls)
    out = {"phase": rows.rename(columns={"phase": "qualname"}).assign(lane=0)}
    at = pd.Index(calls["call_id"])
    for layer in LAYERS:
        if layer not in named:
            continue
        table = named[layer]
        of = np.zeros(len(calls), bool)
        of[at.get_indexer(table["call_id"])] = True
        link, lane = np.append(enclosing(parent, of), -1), np.full(len(calls) + 1, -1)
        for row in np.flatnonzero(of):  # in preorder: whatever it lies in comes before
            lane[row] = lane[link[row]] + 1
        out[layer] = table.assign(lane=lane[at.get_indexer(table["call_id"])])
    return {name: table[(table["end_ns"] - table["start_ns"]) >= NARROW * (end - start)] for name, table in out.items()}


def sequence(layers: dict[str, pd.DataFrame], start: int, end: int) -> Figure:
    """The layered sequence of one step: a band for each layer, in it a lane for each call in another of the same layer."""
    colours = dict(zip(("phase", *LAYERS), ("#c9c9c9", *COLOURS), strict=False))
    lanes = {name: int(table["lane"].max()) + 1 if len(table) else 0 for name, table in layers.items()}
    figure = Figure(figsize=(12, 0.9 + 0.3 * sum(lanes.values())), layout="constrained")
    axes = figure.subplots()
    top, span = 0.0, (end - start) / 1e6
    for name, table in layers.items():
        for row in table.itertuples():
            left, width = (row.start_ns - start) / 1e6, (min(row.end_ns, end) - row.start_ns) / 1e6
            axes.add_patch(Rectangle((left, top + row.lane), width, 0.9, facecolor=colours[name], edgecolor="white", linewidth=0.3))
            label = str(row.qualname).removesuffix(".forward").removeprefix("aten::")
            if len(label) * 0.0046 * span < width:
                axes.text(
                    left + width / 2,
                    top + row.lane + 0.45,
                    label,
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="black" if name == "phase" else "white",
                    clip_on=True,
                )
        top += lanes[name] + 0.3
    axes.set_xlim(0, span)
    axes.set_ylim(top, -0.2)
    axes.set_yticks([])
    axes.set_xlabel("ms from the start of the step", fontsize=9)
    figure.legend(handles=[Patch(color=colours[name], label=name) for name in layers], loc="outside upper right", ncols=4, fontsize=8, frameon=False)
    plain(axes)
    axes.spines["left"].set_visible(False)
    return figure


def memory_picture(seen: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """Resident memory over time, phases shaded."""
    figure = Figure(figsize=(12, 2.6), layout="constrained")
    axes = figure.subplots()
    origin = float(rows["start_ns"].min())
    colours = dict(zip(PHASES, COLOURS, strict=False))
    for row in rows.itertuples():
        axes.axvspan((row.start_ns - origin) / 1e9, (row.end_ns - origin) / 1e9, color=colours[row.phase], alpha=0.3, linewidth=0)
    axes.plot((seen["ts"] - origin) / 1e9, seen["rss_bytes"] / 2**20, color="black", linewidth=1, marker=".", markersize=3)
    axes.set_xlim(-0.05, (rows["end_ns"].max() - origin) / 1e9)
    axes.set_xlabel("s from the start of the first step", fontsize=9)
    axes.set_ylabel("resident memory, MiB", fontsize=9)
    present = [phase for phase in PHASES if phase in set(rows["phase"])]
    figure.legend(
        handles=[Patch(color=colours[phase], alpha=0.3, label=phase) for phase in present],
        loc="outside upper right",
        ncols=5,
        fontsize=8,
        frameon=False,
    )
    plain(axes)
    return figure


def section(report: Report, folder: Path, name: str, words: list[str], trace: Trace, large: Trace, large_words: list[str]) -> None:
    """The part of one network."""
    rows = phases(trace)
    bounds = steps(trace, rows)
    tid, count = int(named_calls(trace, ["train_epoch"])["tid"].iloc[0]), len(bounds)
    report.head(name)
    table = by_phase(trace, rows)
    longest = table["on_cpu_ns"].drop("other").idxmax()
    passes = forwards(trace)
    model = passes[~passes["name"].str.endswith("Loss")].iloc[-1]
    nodes = graph(trace, int(model["call_id"])).nodes
    kinds = nodes["kind"].value_counts()
    report.text(
        f"`{name}.py {' '.join(words)}`: {count} steps. A step takes {ms(float(table['on_cpu_ns'].sum()))} ms of CPU time, {table['share'][longest]:.0%} of it in {longest}. "
        f"The last forward pass of {model['name']} is {kinds.get('module', 0)} calls of `nn.Module`s and {kinds.get('operator', 0)} of operators."
    )
    report.table(
        ("phase", "CPU, ms", "share", "wall, ms"),
        [
            (phase, ms(row["on_cpu_ns"]), f"{row['share']:.0%}", None if np.isnan(row["wall_ns"]) else ms(row["wall_ns"]))
            for phase, row in table.iterrows()
        ],
    )
    later = rows[rows["step"] > 0]
    chosen = int((later["wall_ns"] - later["on_cpu_ns"]).groupby(later["step"]).sum().idxmin())  # the least disturbed by other programs
    start, end = (int(bounds[column][chosen]) for column in ("start_ns", "end_ns"))
    own = rows[rows["step"] == chosen]
    report.picture(
        sequence(boxes(trace, start, end, tid, own), start, end),
        f"{name}-step",
        f"One training step (number {chosen + 1}) of {name} as layers of calls; width is wall time. Calls too short to see are left out.",
    )
    page = folder / f"{name}.html"
    with redirect_stdout(StringIO()):
        pytrace(["report", str(trace.directory), "--html", str(page)])
    report.text(f"[All calls of the whole run, to zoom into]({page.name})")
    since = int(bounds["start_ns"][1])
    operators = by_operator(trace, since, count - 1).head(SHOWN)
    report.table(
        ("operator", "calls a step", "own CPU, ms", "with those below, ms", "GFLOP/s"),
        [(f"`{op}`", f"{row['calls']:.0f}", ms(row["own_ns"]), ms(row["whole_ns"]), _rate(row)) for op, row in operators.iterrows()],
    )
    modules = by_module(trace, tid, since, count - 1).head(SHOWN)
    report.table(
        ("nn.Module, forward only", "calls a step", "own CPU, ms", "with those in it, ms"),
        [(f"`{module}`", f"{row['calls']:.0f}", ms(row["own_ns"]), ms(row["whole_ns"])) for module, row in modules.iterrows()],
    )
    _memory(report, name, large, large_words)


def _rate(row: "pd.Series[Any]") -> str | None:
    if pd.isna(row["flops"]) or not row["flops"] or not row["whole_ns"]:
        return None
    return f"{float(row['flops'] / row['whole_ns']):.2g}"


def _memory(report: Report, name: str, trace: Trace, words: list[str]) -> None:
    rows = phases(trace)
    table, seen = memory(trace, rows)
    few = [str(phase) for phase, row in table.iterrows() if row["samples"] < 2]
    report.picture(memory_picture(seen, rows), f"{name}-memory", f"Resident memory of {name}.py {' '.join(words)}; dots are samples.")
    report.table(
        ("phase", "growth in the first step, MiB", "growth in a later step, MiB", "samples in it"),
        [(phase, f"{row['first'] / 2**20:+.1f}", f"{row['growth'] / 2**20:+.1f}", f"{row['samples']:.0f}") for phase, row in table.iterrows()],
    )
    if few:
        report.text(
            f"Shorter than the time between two samples, so their growth is not distinguished from that of their neighbours: {', '.join(few)}."
        )


def main() -> None:
    """Record, measure, write the report."""
    options = argparse.ArgumentParser()
    options.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    options.add_argument("--batches", type=int, default=12, help="steps of each, at least 2; the first is not counted")
    options.add_argument("--large-batches", type=int, default=4, help="steps of each in large batches, for memory, at least 2")
    options.add_argument("--shrink", type=int, default=1, help="divide the large batches by this")
    args, folder = directory("networks", __doc__, options)
    traces: list[Trace] = []
    report = Report(folder, "Five networks in training: layers, operators, nn.Modules, phases, memory")
    found = {}
    for name in args.networks:
        words = ["--batches", str(args.batches), "--threads", "1"]
        large_words = ["--batches", str(args.large_batches), "--batch-size", str(LARGE[name] // args.shrink), "--threads", "1"]
        trace, _ = record(WORKLOADS / f"{name}.py", words, folder / "traces" / name)
        large, _ = record(WORKLOADS / f"{name}.py", large_words, folder / "traces" / f"{name}-large", layers=(), segment_s=SAMPLE_S, settle_s=0.3)
        found[name] = (words, trace, large, large_words)
        traces += [trace, large]
    report.text(machine(traces[0]), waiting(traces))
    report.text(
        "A step is data (`load_batch`), forward (`nn.Module`s that no other one called), loss, backward (`loss.backward()`) and optimizer (`step`); *other* is what the loop does between them. "
        "Times on CPU are of a step, without the first step: medians of the phases, means of operators and `nn.Module`s. Own time is without the recorded calls below. "
        f"Memory is of a second run in large batches, sampled every {SAMPLE_S * 1000:.0f} ms or so (`usage/`), and taken for straight between two samples."
    )
    for name, (words, trace, large, large_words) in found.items():
        say(f"looking at {name}")
        section(report, folder, name, words, trace, large, large_words)
    report.write()


if __name__ == "__main__":
    main()
