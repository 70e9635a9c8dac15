"""Is an optimized BLAS in use, which one, by which operators, on how many threads, and what does oneDNN make of a difference?

Trains a network as it is and with oneDNN turned off (torch.backends.mkldnn), with the threads that PyTorch takes and with one, in turn.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from recording import COLOURS, WORKLOADS, Report, directory, machine, ms, plain, record, waiting

from pytrace_ebpf.analyze.native import by_blas
from pytrace_ebpf.analyze.native.around import native_by_part
from pytrace_ebpf.derive.sinks.operators import enclosing
from pytrace_ebpf.trace.reader import Trace

CASES = {"with oneDNN": (), "without oneDNN": ("--no-mkldnn",)}
ONE = ("--threads", "1")  # threads that wait for one another spin, which is no computing: times are compared with one
SHOWN = 8


def calls_of(trace: Trace) -> pd.DataFrame:
    """The calls of BLAS, as of analyze.native.by_blas.blas_calls."""
    parts = (by_blas.blas_calls(part) for part in native_by_part(trace, by_blas.COLUMNS))
    return pd.concat([rows[rows["own"]] for rows in parts]).sort_values("call_id", ignore_index=True)


def libraries(traces: list[Trace]) -> pd.DataFrame:
    """Medians over the recordings by library and function: calls, cpu_ns of a call, flops (of those where sizes are known), threads, operators."""
    rows = pd.concat([calls_of(trace).assign(run=i) for i, trace in enumerate(traces)])
    groups = rows.groupby(["library", "name"])
    out = pd.DataFrame({"calls": groups.size() / len(traces), "cpu_ns": groups["cpu_ns"].sum().astype(float) / len(traces)})
    out["flops"] = groups["flops"].sum(min_count=1).astype("Float64") / len(traces)
    out["cores"] = (groups["cpu_ns"].sum() / groups["wall_ns"].sum()).astype(float)
    out["workers"] = [bool((own["cpu_ns"] > own["on_cpu_ns"]).any()) for _, own in groups]
    out["operators"] = [
        ", ".join(f"`{name}`" for name in own.groupby("operator")["cpu_ns"].sum().sort_values(ascending=False).index[:3]) for _, own in groups
    ]
    return out.sort_values("cpu_ns", ascending=False).reset_index()


def operators(traces: list[Trace]) -> pd.DataFrame:
    """Of the operators that no other operator called, by name: wall_ns, cpu_ns (with workers) and flops of a run, medians of the recordings."""
    parts = []
    for i, trace in enumerate(traces):
        calls = trace.calls(columns=["call_id", "parent_id", "layer"])
        rows = trace.operators(columns=["call_id", "layer", "name", "wall_ns", "on_cpu_ns", "worker_on_cpu_ns", "flops"]).astype({"name": object})
        native = rows[rows["layer"] == "operator"].reset_index(drop=True)
        outer = native[enclosing(calls, native["call_id"].to_numpy(), (calls["layer"] == "operator").to_numpy()) < 0]
        sums = outer.assign(cpu_ns=outer["on_cpu_ns"] + outer["worker_on_cpu_ns"]).groupby("name")[["wall_ns", "cpu_ns", "flops"]].sum(min_count=1)
        parts.append(sums.astype("Float64").assign(run=i))
    return pd.concat(parts).groupby(level=0)[["wall_ns", "cpu_ns", "flops"]].median()


def inside(traces: list[Trace], names: list[str]) -> dict[str, str]:
    """Of each of these operators, that no other called: what is in it, itself included, with the most CPU time of its own, in words."""
    parts = []
    for trace in traces:
        calls = trace.calls(columns=["call_id", "parent_id", "last_descendant_id", "layer", "func_id", "self_on_cpu_ns"])
        calls["name"] = calls["func_id"].map(trace.functions().set_index("func_id")["name"])
        native = calls[calls["layer"].isin(("operator", "blas"))]
        outer = native[native["name"].isin(names) & (enclosing(calls, native["call_id"].to_numpy(), (calls["layer"] == "operator").to_numpy()) < 0)]
        at = np.searchsorted(outer["call_id"].to_numpy(), native["call_id"].to_numpy(), side="right") - 1
        within = (at >= 0) & (native["call_id"].to_numpy() <= outer["last_descendant_id"].to_numpy()[at.clip(0)])
        parts.append(native[within].assign(of=outer["name"].to_numpy()[at[within]]))
    spent = pd.concat(parts).groupby(["of", "name"])["self_on_cpu_ns"].sum().astype(float)
    out = {}
    for name, own in spent.groupby("of"):
        leading = own.droplevel("of").sort_values(ascending=False).head(2) / own.sum()
        out[str(name)] = ", ".join(f"`{part}` {share:.0%}" for part, share in leading.items() if share >= 0.1)
    return out


def picture(tables: dict[str, pd.DataFrame], names: list[str]) -> Figure:
    """CPU time of the operators that take most of it, in both cases."""
    figure = Figure(figsize=(9, 0.9 + 0.5 * len(names)), layout="constrained")
    axes = figure.subplots()
    for i, table in enumerate(tables.values()):
        axes.barh(
            [at + (i - 0.5) * 0.36 for at in range(len(names))],
            [float(table["cpu_ns"].get(name, 0)) / 1e6 for name in names],
            height=0.32,
            color=COLOURS[i],
        )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("CPU time in a run, ms", fontsize=9)
    handles = [Patch(color=colour, label=says) for colour, says in zip(COLOURS, tables, strict=False)]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    plain(axes)
    return figure


def answer(says: str, table: pd.DataFrame, threads: Any) -> str:
    """In a sentence: which library, for what, on how many threads."""
    if not len(table):
        return f"**{says}**: no BLAS that exports its functions was called."
    spent = table.groupby("library")["cpu_ns"].sum().sort_values(ascending=False)
    named = ", ".join(f"{library} ({ns / spent.sum():.0%} of the time in BLAS)" for library, ns in spent.items())
    good = all(library in by_blas.OPTIMIZED for library in spent.index)
    helped = "worker threads helped" if table["workers"].any() else "no worker thread helped"
    return f"**{says}**: {named}; {'optimized' if good else 'not all optimized'}. The program has {threads} threads for operators; {helped}."


def rate(flops: Any, ns: float) -> str | None:
    """GFLOP/s."""
    return None if pd.isna(flops) or not ns or not flops else f"{float(flops) / float(ns):.1f}"


def write(
    folder: Path, name: str, words: list[str], alone: dict[str, list[Trace]], together: dict[str, list[Trace]], threads: dict[str, Any]
) -> None:
    """The report: `alone`, the runs with one thread, and `together`, those with as many as `threads` says."""
    report = Report(folder, "Which BLAS computes a network in training, and what oneDNN makes of it")
    every = [trace for cases in (alone, together) for own in cases.values() for trace in own]
    report.text(
        f"`python3 {name}.py {' '.join(words)}`, as it is and with `--no-mkldnn` (oneDNN off), with PyTorch's own number of threads and with one, "
        f"{len(every) // 4} times each, in turn."
    )
    report.text(machine(every[0]), waiting(every))
    shared = {says: libraries(own) for says, own in together.items()}
    report.points(answer(says, shared[says], threads[says]) for says in shared)
    tables, used = ({says: of(own) for says, own in alone.items()} for of in (operators, libraries))
    longest = max(tables.values(), key=lambda table: table["cpu_ns"].sum()).sort_values("cpu_ns", ascending=False)
    names = [str(name) for name in longest.index[:SHOWN]]
    report.picture(
        picture(tables, names), "blas", "CPU time of the operators with most of it that no other operator called, on one thread; medians of the runs."
    )
    report.head("Operators, on one thread")
    report.text("CPU time of a run, and GFLOP/s by that time; - where the operations are not known from the shapes.")
    first, second = tables.values()
    report.table(
        ("operator", *(f"{says}, ms" for says in tables), "times", *(f"{says}, GFLOP/s" for says in tables)),
        [
            (f"`{name}`", *(ms(table["cpu_ns"][name]) if name in table.index else None for table in (first, second)),
             f"{float(second['cpu_ns'][name] / first['cpu_ns'][name]):.2f}" if name in first.index and name in second.index else None,
             *(rate(table["flops"][name], table["cpu_ns"][name]) if name in table.index else None for table in (first, second)))
            for name in names
        ],
    )  # fmt: skip
    report.head("What computes them, on one thread")
    report.text(
        "What an operator's CPU time is in: the operators and functions of BLAS that it called, or itself. What is in no function of BLAS is code of the operator, or of a library that is none."
    )
    parts = {says: inside(own, names) for says, own in alone.items()}
    report.table(("operator", *alone), [(f"`{name}`", *(own.get(name) for own in parts.values())) for name in names])
    report.head("Functions of BLAS")
    report.text(
        "CPU time of a run on one thread; with all threads, how many cores were busy while such a call ran. `dnnl_primitive_execute` is any primitive "
        "of oneDNN, changes of a tensor's layout among them; its sizes are not read. Threads that wait for one another spin, which counts as busy."
    )
    report.table(
        ("function", "library", "runs", "calls a run", "CPU time, ms", "GFLOP/s", f"cores busy, {max(threads.values())} threads", "for"),
        [
            (f"`{row['name']}`", row["library"], says, f"{row['calls']:.0f}", ms(row["cpu_ns"]), rate(row["flops"], row["cpu_ns"]), _cores(shared[says], row["name"]), row["operators"])
            for says, table in used.items()
            for row in table.to_dict("records")
        ],
    )  # fmt: skip
    report.write()


def _cores(table: pd.DataFrame, name: str) -> str | None:
    found = table.loc[table["name"] == name, "cores"]
    return f"{found.iloc[0]:.2f}" if len(found) else None


def main() -> None:
    """Record, compare, write the report."""
    options = argparse.ArgumentParser()
    options.add_argument("--workload", default="kim_cnn", help="of scripts/workloads")
    options.add_argument("--repeat", type=int, default=3, help="runs of each")
    options.add_argument("--batches", type=int, default=8)
    args, folder = directory("blas", __doc__, options)
    words = ["--batches", str(args.batches)]
    alone, together = ({says: list[Trace]() for says in CASES} for _ in range(2))
    threads: dict[str, Any] = {}
    for repeat in range(args.repeat):
        for number, (says, more) in enumerate(CASES.items()):
            for traces, also in ((alone, ONE), (together, ())):
                place = folder / "traces" / f"{number}-{repeat}-{'one' if also else 'all'}"
                trace, result = record(WORKLOADS / f"{args.workload}.py", [*words, *more, *also], place)
                traces[says].append(trace)
                threads[says] = result["threads"]
    write(folder, args.workload, words, alone, together, threads)


if __name__ == "__main__":
    main()
