"""Does a second core help a training run, and does one thread sit on two half-used cores?

Trains kim_cnn on one core and on two (as with taskset), with 1 and 2 threads (OMP_NUM_THREADS), and on two with
torch.set_num_threads(1) called by the program. Runs of all settings take turns.
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from recording import COLOURS, WORKLOADS, Report, directory, machine, ms, named_calls, plain, record, waiting

from pytrace_ebpf.analyze.time.cores import parallelism
from pytrace_ebpf.derive.scheduling.curve import Curve
from pytrace_ebpf.derive.scheduling.split import on_cores, timeline
from pytrace_ebpf.experiment.data import Experiment
from pytrace_ebpf.experiment.settings import Setting
from pytrace_ebpf.trace.reader import Trace

FUNCTIONS = ("train_epoch", "load_batch", "KimCNN.forward", "Conv1d.forward", "Embedding.forward", "backward", "step")
LEAST = 0.02  # of the longest operator: what takes less is not shown
SAME = 0.02  # so little do times differ of which one is shown


@dataclass(frozen=True)
class Case:
    """A setting: `says`, its name; how the program is started; and words for the program itself."""

    says: str
    setting: Setting
    words: tuple[str, ...] = ()


def cases() -> list[Case]:
    """The settings, on the first two cores that we may use; the first is what others are compared with. Exits where there is one only."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("there is one core only, so nothing to compare; run it on a machine with two.")
    one, two = (cores[0],), tuple(cores)
    return [
        Case("1 core, 1 thread", Setting(one, 1)),
        Case("1 core, 2 threads", Setting(one, 2)),
        Case("2 cores, 1 thread", Setting(two, 1)),
        Case("2 cores, set_num_threads(1)", Setting(two, 2), ("--threads", "1")),
        Case("2 cores, 2 threads", Setting(two, 2)),
    ]


def window(trace: Trace) -> tuple[int, int, int]:
    """Start and end of the training, and the thread that ran it."""
    epochs = named_calls(trace, ["train_epoch"])
    return int(epochs["start_ns"].min()), int(epochs["end_ns"].max()), int(epochs["tid"].iloc[0])


def busy(trace: Trace) -> pd.DataFrame:
    """What each thread had of each core during the training: columns thread ("Python" or "worker"), cpu, share of the time."""
    start, end, tid = window(trace)
    slices = on_cores(timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses()))
    slices = slices.assign(ns=(slices["end_ns"].clip(upper=end) - slices["start_ns"].clip(lower=start)).clip(lower=0))
    slices["thread"] = np.where(slices["tid"] == tid, "Python", "worker")
    out = slices[slices["ns"] > 0].groupby(["thread", "cpu"])["ns"].sum() / (end - start)
    return out.rename("share").reset_index()


def moves(trace: Trace) -> float:
    """How often a second of its CPU time the Python thread came to another core, during the training."""
    epochs = named_calls(trace, ["train_epoch"], ["migrations"])
    return float(epochs["migrations"].sum() / (epochs["on_cpu_ns"].sum() / 1e9))


def both(trace: Trace) -> float:
    """The share of the training in which two cores were busy with this process at a time."""
    start, end, _ = window(trace)
    table = parallelism(timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses()), start, end)
    return float(table.loc[table["cores"] >= 2, "ns"].sum() / (end - start))


def use(traces: dict[str, list[Trace]]) -> pd.DataFrame:
    """The same of all runs: setting, repeat, thread, core (0 for the one that was busier in that run), share."""
    parts = []
    for says, own in traces.items():
        for repeat, trace in enumerate(own):
            table = busy(trace)
            order = table.groupby("cpu")["share"].sum().sort_values(ascending=False).index
            parts.append(table.assign(core=order.get_indexer(table["cpu"]), setting=says, repeat=repeat))
    table = pd.concat(parts).set_index(["setting", "repeat", "thread", "core"])["share"].unstack(["thread", "core"]).fillna(0.0)
    return table.stack(["thread", "core"], future_stack=True).rename("share").reset_index()


def picture(table: pd.DataFrame, names: list[str]) -> Figure:
    """Busy time of each core by thread, medians of the runs, a group of bars for each setting."""
    shares = table.groupby(["setting", "core", "thread"])["share"].median() * 100
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    colours = {"Python": COLOURS[0], "worker": COLOURS[1]}
    for i, name in enumerate(names):
        for core, says in enumerate(("busier", "other")):
            bottom, at = 0.0, i + (core - 0.5) * 0.38
            for thread, colour in colours.items():
                share = float(shares.get((name, core, thread), 0.0))
                axes.bar(at, share, width=0.34, bottom=bottom, color=colour)
                bottom += share
            axes.annotate(says, (at, bottom), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
    axes.set_ylim(0, 105)
    axes.set_ylabel("core busy with this program, % of the training", fontsize=9)
    handles = [Patch(color=colour, label=label) for colour, label in zip(colours.values(), ("Python's thread", "worker threads"), strict=True)]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    plain(axes)
    return figure


def starved(trace: Trace) -> Curve:
    """When no thread of the program ran though at least one could: other programs had its cores."""
    table = timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())
    table = table.assign(state=table["state"].astype("object"))
    table = table[table["state"].isin(("on_cpu", "runq_wait"))]
    ran = (table["state"] == "on_cpu").to_numpy(np.int64)
    when = np.concatenate((table["start_ns"].to_numpy(), table["end_ns"].to_numpy()))
    order = np.argsort(when, kind="stable")
    running, able = (np.cumsum(np.concatenate((step, -step))[order])[:-1] for step in (ran, 1 - ran))
    without = (running == 0) & (able > 0)
    without[:1] = True  # a curve needs one interval
    when = when[order]
    return Curve.of(when[:-1][without], when[1:][without])


def called(traces: list[Trace], native: bool) -> pd.DataFrame:
    """Medians of the calls of FUNCTIONS, or of all operators, by name: wall_ns, need_ns, on_cpu_ns, worker_on_cpu_ns.

    need_ns is wall time without that in which the program was starved.
    """
    parts = []
    for trace in traces:
        if native:
            calls = trace.operators(layer="operator").astype({"name": object}).rename(columns={"name": "qualname"})
        else:
            calls = named_calls(trace, FUNCTIONS, ["worker_on_cpu_ns"])
        curve = starved(trace)
        less = curve.at(calls["end_ns"].to_numpy(np.int64)) - curve.at(calls["start_ns"].to_numpy(np.int64))
        parts.append(calls[["qualname", "wall_ns", "on_cpu_ns", "worker_on_cpu_ns"]].assign(need_ns=calls["wall_ns"] - less))
    table = pd.concat(parts)
    return table.astype({name: float for name in table.columns if name != "qualname"}).groupby("qualname").median()


def gains(tables: dict[str, pd.DataFrame], names: list[str]) -> list[list[str]]:
    """Rows: name; of the first setting wall_ns and need_ns; of each other the speed-up by need_ns."""
    first, *others = tables.values()
    rows = []
    for name in names:
        need = first.loc[name, "need_ns"]
        gained = [f"{need / table.loc[name, 'need_ns']:.2f}" if name in table.index else "-" for table in others]
        rows.append([f"`{name}`", ms(first.loc[name, "wall_ns"]), ms(need), *gained])
    return rows


def spent(tables: dict[str, pd.DataFrame], names: list[str]) -> list[list[str]]:
    """Rows: name, then for each setting its CPU time, Python's thread + workers, in ms."""
    return [
        [f"`{name}`", *(_cpu(table.loc[name]) if name in table.index else "-" for table in tables.values())]
        for name in names
    ]  # fmt: skip


def _cpu(row: "pd.Series[float]") -> str:
    return ms(row["on_cpu_ns"]) + (f" + {ms(row['worker_on_cpu_ns'])}" if row["worker_on_cpu_ns"] else "")


def distinct(table: pd.DataFrame) -> list[str]:
    """The operators of `table` that take longest, without those that only hand on to another of the same time."""
    found: list[str] = []
    table = table[table["need_ns"] > LEAST * table["need_ns"].max()]
    for name, row in table.sort_values("need_ns", ascending=False).iterrows():
        if all(abs(row["on_cpu_ns"] / table.loc[other, "on_cpu_ns"] - 1) > SAME for other in found):
            found.append(str(name))
    return found


def write(folder: Path, experiment: Experiment, traces: dict[str, list[Trace]]) -> None:
    """The report."""
    names = list(traces)
    functions = {name: called(own, native=False) for name, own in traces.items()}
    operators = {name: called(own, native=True) for name, own in traces.items()}
    leaders = distinct(operators[names[0]])
    report = Report(folder, "One core or two, one thread or two: a text CNN in training")
    report.text(
        f"`{' '.join(experiment.command)}`, each setting {len(traces[names[0]])} times, all in turn. Cores are given as by `taskset`, threads by `OMP_NUM_THREADS`; "
        "under *set_num_threads(1)* the environment says 2 and the program itself `torch.set_num_threads(1)`."
    )
    report.text(machine(traces[names[0]][0]), waiting(trace for own in traces.values() for trace in own))
    table = use(traces)
    report.picture(
        picture(table, names), "cores", "Share of the training in which each core was busy with this program, by thread; medians of the runs."
    )
    report.head("Does one thread sit on two half-used cores?")
    report.text(answer(table, names))
    report.points(sits(table, name, traces[name]) for name in names)
    report.head("What a second core gains")
    report.text(
        "Medians of the calls, in ms. The speed-up is over the first setting, by wall time less that in which no thread of the program ran though one could "
        "(*without others*): then other programs had its cores. While one of two threads ran and the other waited for a core, that is in it. "
        "The efficiency of two cores is half of the speed-up. On a machine that has other things to do two threads can be slower than one, as each waits for "
        "whichever of them has lost its core."
    )
    columns = (f"{names[0]}, wall", "without others", *(f"speed-up, {name}" for name in names[1:]))
    report.table(("function", *columns), gains(functions, list(FUNCTIONS)))
    report.table(("operator", *columns), gains(operators, leaders))
    report.head("What it costs")
    report.text(
        "CPU time of a call in ms, of Python's thread + of the worker threads that it set to work. Threads that wait for one another spin for a while, which counts."
    )
    report.table(("function", *names), spent(functions, list(FUNCTIONS)))
    report.table(("operator", *names), spent(operators, leaders))
    report.text(
        "The data set is an ordinary experiment: `pytrace-ebpf experiment --report` this directory shows all functions, operators and `nn.Module`s."
    )
    report.write()


def sits(table: pd.DataFrame, name: str, traces: list[Trace]) -> str:
    """A sentence on the cores of one setting."""
    shares = table[table["setting"] == name].groupby(["thread", "core"])["share"].median()
    moved, two = (float(np.median([of(trace) for trace in traces])) for of in (moves, both))

    def had(thread: str) -> str:
        return " and ".join(f"the {says} core for {shares.get((thread, core), 0.0):.0%}" for core, says in enumerate(("busier", "other")))

    said = f"**{name}**: Python's thread had {had('Python')} of the time, and moved {moved:.1f} times a second of its CPU time"
    if shares.get(("worker", 0), 0.0) + shares.get(("worker", 1), 0.0) >= 0.005:
        said += f"; its workers had {had('worker')}"
    return f"{said}. Both were busy at once for {two:.0%} of the time."


def answer(table: pd.DataFrame, names: list[str]) -> str:
    """The question's answer, by the settings with two cores and one thread."""
    alone = table[table["setting"].isin([name for name in names if name.startswith("2 cores") and not name.endswith("2 threads")])]
    shares = alone.groupby(["setting", "repeat", "core"])["share"].sum().unstack(fill_value=0.0)
    less = shares.get(1, 0.0) / shares.sum(axis=1)
    return (
        f"A thread is on one core at a time. Of the CPU time of the one thread that had two cores, {less.median():.0%} was on the core it had less in the median run, "
        f"{less.max():.0%} in the run with most ({len(less)} runs). Two cores that each look partly used can so be one busy thread; that more than one core's work is done "
        "shows only where both are busy at once."
    )


def main() -> None:
    """Record, compare, write the report."""
    options = argparse.ArgumentParser()
    options.add_argument("--repeat", type=int, default=3, help="runs of each setting")
    options.add_argument("--batches", type=int, default=8)
    options.add_argument("--batch-size", type=int, default=64)
    args, folder = directory("cores", __doc__, options)
    program, words = WORKLOADS / "kim_cnn.py", ["--batches", str(args.batches), "--batch-size", str(args.batch_size)]
    chosen = cases()
    rows = [{"setting": c.says, "cpus": list(c.setting.cpus or ()), "threads": c.setting.threads, "cores": c.setting.cores} for c in chosen]
    experiment = Experiment(folder, ["python3", "kim_cnn.py", *words], rows, [])
    traces: dict[str, list[Trace]] = {case.says: [] for case in chosen}
    for repeat in range(1, args.repeat + 1):
        for number, case in enumerate(chosen):
            place = folder / "traces" / f"{number}-{repeat}"
            trace, result = record(program, [*words, *case.words], place, setting=case.setting)
            place.with_suffix(".log").write_text(f"{result}\n")
            experiment.add(trace, case.says, repeat, place.with_suffix(".log"))
            traces[case.says].append(trace)
    write(folder, experiment, traces)


if __name__ == "__main__":
    main()
