"""Is the time of a text CNN's forward pass where its complexity says it is: k*d_e*d_c*N, d_c*N and l*d_c?

Records forward passes of kim_cnn on one thread, each of its sizes varied alone, and fits what the time grows with.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from recording import COLOURS, HERE, Report, directory, machine, ms, plain, record, waiting

from pytrace_ebpf.experiment.settings import Setting
from pytrace_ebpf.trace.reader import Trace

SIZES = ("k", "d_e", "d_c", "N", "l")
BASE = {"k": 2, "d_e": 300, "d_c": 128, "N": 124, "l": 103}
SWEEPS = {
    "k": (1, 2, 4, 8, 16, 32),
    "d_e": (75, 150, 300, 600, 1200, 2400),
    "d_c": (32, 64, 128, 256, 512, 1024, 2048),
    "N": (31, 62, 124, 248, 496, 992, 1984),
    "l": (103, 412, 1648, 6592, 26368, 105472),
}
# With 103 classes the linear layer is too small for its size to matter, so its other factor is varied with more of them.
AROUND = {("aten::linear", "d_c"): {"l": 6592}}
# What glibc's malloc is given so that it keeps memory that was freed: by default it gives large blocks back, and gets fresh ones page by page.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 33), "MALLOC_TRIM_THRESHOLD_": str(1 << 34), "MALLOC_TOP_PAD_": str(1 << 28)}
# What each operator's time should grow with; what a batch is made of is the same in all.
COMPLEXITY = {
    "aten::conv1d": ("k*d_e*d_c*N", ("k", "d_e", "d_c", "N")),
    "aten::max_pool1d": ("d_c*N", ("d_c", "N")),
    "aten::linear": ("l*d_c", ("l", "d_c")),
}
CONVOLUTION = COMPLEXITY["aten::conv1d"][1]
LAYER = {"aten::conv1d": "convolution", "aten::max_pool1d": "pooling", "aten::linear": "linear layer"}
LARGE = 3  # points of the large end
WITHIN = 0.15


def measured(trace: Trace) -> pd.DataFrame:
    """One row per operator and sizes: operator, sizes (those it depends on; N is the number of positions, N - k + 1), work, calls, median times.

    The sizes are those of the tensors that the probes read. work: the product that COMPLEXITY names, times the batch. The first
    call of each size is left out: then oneDNN writes the code that it runs. Times in ns: on_cpu_ns with low and high (quartiles), wall_ns;
    of the convolution also kernel_ns, the longest call of oneDNN in it, and reorder_ns, the copies before and the others of its calls.
    """
    rows = trace.operators(columns=["call_id", "tid", "name", "layer", "start_ns", "wall_ns", "on_cpu_ns", "shapes", "flops"])
    rows = rows.astype({"name": object, "layer": object}).merge(trace.calls(columns=["call_id", "last_descendant_id"]), on="call_id")
    own = rows[rows["name"].isin(list(COMPLEXITY))].reset_index(drop=True)
    own = own.join(_parts(rows, own))
    own["sizes"] = [_sizes(name, shapes) for name, shapes in zip(own["name"], own["shapes"], strict=True)]
    own["work"] = [float(np.prod(list(sizes.values()))) for sizes in own["sizes"]]
    own["key"] = [tuple(sizes.items()) for sizes in own["sizes"]]
    own = own[(own.groupby(["name", "key"]).cumcount() > 0) & (own["on_cpu_ns"] > 0).fillna(False)]
    groups = own.astype({"on_cpu_ns": float, "wall_ns": float}).groupby(["name", "key"], sort=False)
    table = groups[["on_cpu_ns", "wall_ns", "kernel_ns", "reorder_ns"]].median()
    table["low"], table["high"] = (groups["on_cpu_ns"].quantile(q) for q in (0.25, 0.75))
    table["calls"], table["work"], table["flops"] = groups.size(), groups["work"].first(), groups["flops"].first()
    return table.reset_index().rename(columns={"name": "operator"})


def _sizes(name: str, shapes: Any) -> dict[str, int]:
    """The sizes that a call depends on, by the shapes of its tensors, and the batch."""
    given: Any = [None if shape is None else [int(n) for n in shape] for shape in shapes]
    if name == "aten::conv1d":
        (batch, d_e, words), (d_c, _, k), *_ = given
        return {"batch": batch, "k": k, "d_e": d_e, "d_c": d_c, "N": words - k + 1}
    if name == "aten::max_pool1d":
        batch, d_c, positions = given[0]
        return {"batch": batch, "d_c": d_c, "N": positions}
    (batch, d_c), (classes, _), *_ = given
    return {"batch": batch, "l": classes, "d_c": d_c}


def _parts(rows: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """kernel_ns and reorder_ns of each row of `own`, by the calls `rows` below it; NaN where there are none."""
    at = np.searchsorted(own["call_id"].to_numpy(), rows["call_id"].to_numpy(), side="right") - 1
    below = (at >= 0) & (rows["call_id"].to_numpy() <= own["last_descendant_id"].to_numpy()[at.clip(0)])
    below &= rows["call_id"].to_numpy() != own["call_id"].to_numpy()[at.clip(0)]
    rows = rows[below].assign(of=at[below])
    kernels = rows[rows["layer"] == "blas"].groupby("of")["on_cpu_ns"]
    copies = rows[rows["name"] == "aten::contiguous"].groupby("of")["on_cpu_ns"].sum()
    kernel = kernels.max().astype(float)
    reorder = kernels.sum().astype(float) - kernel + copies.reindex(kernel.index).fillna(0).astype(float)
    return pd.DataFrame({"kernel_ns": kernel, "reorder_ns": reorder}).reindex(range(len(own)))


def sweep(table: pd.DataFrame, operator: str, factor: str) -> pd.DataFrame:
    """The rows of `operator` in which only `factor` differs from BASE, by size, with `value`, that of the factor (of N the words)."""
    found = []
    for value in SWEEPS[factor]:
        sizes = point(operator, factor, value)
        sizes["N"] -= sizes["k"] - 1
        same = [
            name == operator and all(sizes[n] == v for n, v in key if n != "batch") for name, key in zip(table["operator"], table["key"], strict=True)
        ]
        found.append(table[same].assign(value=value))
    return pd.concat(found, ignore_index=True)


def point(operator: str, factor: str, value: int) -> dict[str, int]:
    """The sizes of a model in which `factor` has this value, for the sweep of `operator`."""
    return BASE | AROUND.get((operator, factor), {}) | {factor: value}


def exponent(rows: pd.DataFrame, column: str = "on_cpu_ns") -> float:
    """The slope of log(time) over log(work) on the large end."""
    large = rows.tail(LARGE)
    return float(np.polyfit(np.log(large["work"]), np.log(large[column]), 1)[0])


def picture(tables: dict[str, pd.DataFrame]) -> Figure:
    """Measured time over the work, log-log: a row for each recording, a column for each operator; lines are the fits on the large ends."""
    figure = Figure(figsize=(12, 7.6), layout="constrained")
    grid = figure.subplots(len(tables), len(COMPLEXITY), sharex="col", sharey="col")
    for number, (line, (says, table)) in enumerate(zip(grid, tables.items(), strict=True), 1):
        for axes, (operator, (product, factors)) in zip(line, COMPLEXITY.items(), strict=True):
            for factor in factors:
                _series(axes, sweep(table, operator, factor), factor)
            axes.set(xscale="log", yscale="log")
            axes.set_title(f"{LAYER[operator]}, {says}", fontsize=10)
            axes.legend(fontsize=8, frameon=False, title="varied alone", title_fontsize=8, loc="upper left")
            plain(axes)
            if number == len(tables):
                axes.set_xlabel(f"{product.replace('*', '·')} × batch", fontsize=9)
        line[0].set_ylabel("time on CPU, ms, median and quartiles", fontsize=9)
    return figure


def _series(axes: Any, rows: pd.DataFrame, factor: str) -> None:
    """The points of one sweep, and the line through its largest."""
    colour, time = COLOURS[SIZES.index(factor)], rows["on_cpu_ns"]
    work: npt.NDArray[np.float64] = rows["work"].to_numpy(float)
    axes.errorbar(work, time / 1e6, [(time - rows["low"]) / 1e6, (rows["high"] - time) / 1e6], fmt="o", markersize=4, linewidth=1, color=colour)
    slope, large = exponent(rows), rows.tail(LARGE)
    level = np.exp(np.mean(np.log(large["on_cpu_ns"]) - slope * np.log(large["work"])))
    axes.plot(work[-LARGE:], level * work[-LARGE:] ** slope / 1e6, color=colour, linewidth=1.2, label=f"{factor}: exponent {slope:.2f}")


def deviation(rows: pd.DataFrame, factor: str) -> str:
    """Why an exponent of the convolution is what it is: how its parts grow on the large end."""
    first, last = rows.iloc[-LARGE], rows.iloc[-1]
    rates = [row["flops"] / row["on_cpu_ns"] for row in (first, last)]
    kernel, reorder = (exponent(rows, name) for name in ("kernel_ns", "reorder_ns"))
    shares = [row["reorder_ns"] / row["on_cpu_ns"] for row in (first, last)]
    return (
        f"**{factor}**: from {first['value']} to {last['value']} it computes at {rates[0]:.1f} to {rates[1]:.1f} GFLOP/s. oneDNN's kernel alone has exponent "
        f"{kernel:.2f}; copies and reorders of layout around it have {reorder:.2f}, and {shares[0]:.0%} to {shares[1]:.0%} of the time."
    )


def write(folder: Path, recorded: dict[str, tuple[Trace, dict[str, Any]]], batch: int) -> None:
    """The report on two recordings, as the program is and with memory kept, each with what it said."""
    traces = {says: trace for says, (trace, _) in recorded.items()}
    faults = [f"{result['page_faults'] / result['passes']:,.0f}" for _, result in recorded.values()]
    tables = {says: measured(trace) for says, trace in traces.items()}
    as_is, kept = tables.values()
    report = Report(folder, "Complexity of a text CNN's forward pass, measured")
    report.text(
        "The model is `kim_cnn` (embedding, one convolution over the words, maximum over time, linear layer). By the books its three layers cost "
        "k·d_e·d_c·N, d_c·N and l·d_c operations: filter size k, embedding d_e, filters d_c, words N, classes l. "
        f"Each is varied alone around {', '.join(f'{name} = {value}' for name, value in BASE.items())}, in batches of {batch}, on one thread; "
        f"only the linear layer's d_c beside l = {AROUND['aten::linear', 'd_c']['l']}. "
        "For the convolution and the pool, N is below the number of positions of the filter, words − k + 1."
    )
    report.text(machine(next(iter(traces.values()))), waiting(traces.values()))
    report.text(
        "Times are the operators' own time on a CPU, seen by probes from outside the process, medians of the calls of each size "
        f"({int(as_is['calls'].min())} or more; sizes take turns, and the first call of each is left out, in which oneDNN writes its code). "
        "Sizes are those of the tensors that the probes read. Waiting for a core does not count. Exponents are slopes of log(time) over log(operations) "
        f"over the {LARGE} largest sizes. All was recorded twice: as the program is, and with *memory kept*, that is with glibc's malloc set by its environment "
        "to keep what is freed. Else it gives large blocks back to the kernel, and a large tensor then costs a page fault for each 4 KiB. "
        f"A forward pass had {faults[0]} page faults as the program is and {faults[1]} with memory kept, on average of all sizes."
    )
    report.picture(picture(tables), "complexity", "Time over the number of operations, both logarithmic; lines: fits over the largest sizes.")
    report.head("Exponents on the large end")
    lines = []
    for operator, (product, factors) in COMPLEXITY.items():
        for factor in factors:
            first, second = (sweep(table, operator, factor) for table in (as_is, kept))
            last = first.iloc[-1]
            lines.append((f"{LAYER[operator]}, {product.replace('*', '·')}", factor, f"{first['value'].iloc[-LARGE]} to {last['value']}",
                          f"{exponent(first):.2f}", f"{exponent(second):.2f}", ms(last["on_cpu_ns"]), ms(second.iloc[-1]["on_cpu_ns"])))  # fmt: skip
    report.table(("layer", "varied", "from, to", "exponent", "memory kept", "largest, ms", "memory kept, ms"), lines)
    report.text(verdict(as_is, kept))
    report.head("What the convolution's time consists of")
    report.text(
        "`aten::conv1d` is more than its multiplications. The embedded words come with the wrong dimension last, so they are copied; oneDNN then puts "
        "them, the weights and the result into its own layout and back (*copies and reorders*, which grow with d_e·N, k·d_e·d_c and d_c·N), "
        "and between these runs the *kernel* that computes. An exponent below 1 means that it becomes more efficient with the size."
    )
    for says, table in tables.items():
        convolution(report, table, says)
    report.write()


def verdict(as_is: pd.DataFrame, kept: pd.DataFrame) -> str:
    """Which exponents of the convolution are not about 1, and whether fresh memory is why."""
    first, second = (
        [factor for factor in CONVOLUTION if abs(exponent(sweep(table, "aten::conv1d", factor)) - 1) > WITHIN] for table in (as_is, kept)
    )
    said = "Of the convolution " + (f"all but {', '.join(first)}" if first else "all") + f" are within {WITHIN} of 1"
    said += ", and with memory kept " + (f"all but {', '.join(second)}. " if second else "all. ")
    by_memory = [factor for factor in first if factor not in second]
    if by_memory:
        said += (
            f"So it is fresh memory that makes {', '.join(by_memory)} deviate: page faults, above all in the copies, and not the multiplications. "
        )
    return said + "What the rest of a difference from 1 is made of stands below."


def convolution(report: Report, table: pd.DataFrame, says: str) -> None:
    """What the time of the convolution consists of, for each of its sizes."""
    report.text(f"**{says[0].upper()}{says[1:]}**")
    report.points(deviation(sweep(table, "aten::conv1d", factor), factor) for factor in CONVOLUTION)
    report.table(
        ("varied", "to", "calls", "on CPU, ms", "quartiles", "kernel", "copies and reorders", "GFLOP/s", "kernel alone, GFLOP/s"),
        [
            (factor, row["value"], row["calls"], ms(row["on_cpu_ns"]), f"{ms(row['low'])} to {ms(row['high'])}", f"{row['kernel_ns'] / row['on_cpu_ns']:.0%}",
             f"{row['reorder_ns'] / row['on_cpu_ns']:.0%}", f"{row['flops'] / row['on_cpu_ns']:.1f}", f"{row['flops'] / row['kernel_ns']:.1f}")
            for factor in CONVOLUTION
            for row in sweep(table, "aten::conv1d", factor).to_dict("records")
        ],
    )  # fmt: skip


def main() -> None:
    """Record, measure, write the report."""
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=15, help="calls of each size, the first not counted")
    options.add_argument("--batch-size", type=int, default=16)
    options.add_argument("--shrink", type=int, default=0, help="leave out the so many largest sizes of each sweep")
    args, folder = directory("complexity", __doc__, options)
    for factor, values in SWEEPS.items():
        SWEEPS[factor] = values[: max(LARGE, len(values) - args.shrink)]
    wanted = [(operator, factor) for operator, (_, factors) in COMPLEXITY.items() for factor in factors]
    points = {tuple(point(*each, value)[name] for name in SIZES) for each in wanted for value in SWEEPS[each[1]]}
    words = ["--rounds", str(args.rounds), "--batch-size", str(args.batch_size), *(",".join(map(str, sizes)) for sizes in sorted(points))]
    recorded = {
        says: record(HERE / "forwards.py", words, folder / "traces" / says.replace(" ", "-"), setting=Setting(threads=1), environment=environment)
        for says, environment in (("as is", {}), ("memory kept", KEEP_MEMORY))
    }
    write(folder, recorded, args.batch_size)


if __name__ == "__main__":
    main()
