"""Whether samples tell the truth: of one program at one time beside other samplers, and against exact calls of the same seconds.

A program that measures what each of its functions took (tests/targets/shares.py) is sampled by `--sample`, by py-spy and, where it runs on CPython 3.15,
by that one's own profiling.sampling, all at once. Printed is each function's share in percent, of the main thread: of its time on a core and of its time
by the wall clock, as it measured both, and by each sampler, with one standard error and by how many of those it differs: ours from the time on a core,
the others' from the wall clock's, as they sample by that, and to them a thread that waits for a core runs. Where other programs want the cores the two
are not the same, nor where py-spy stops the program, which 3.15's does not count as running. With --trace it is the functions of a trace that has both
calls and samples (--sample --source agent).

    scripts/bench/agreement.py [--python PATH] [--root ROOT] [--seconds 20] [--hz 199] [--depth 1000] [--threads] [--rootless] [--py-spy PATH]
    scripts/bench/agreement.py --trace DIR [--top 15]
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.errors import standard_error
from pytrace_ebpf.analyze.samples.tree import nodes
from pytrace_ebpf.trace.reader import Trace

REPOSITORY = Path(__file__).parents[2]
TARGETS = REPOSITORY / "tests" / "targets"
FUNCTIONS = ("short", "long", "generated", "deep", "hashed", "spend")
# spend, by which it measures the others, takes next to nothing; but it is a system call, where a thread loses a core that it has to give away
ON_CORE, BY_WALL = "on a core", "by the wall clock"  # as the program measured it
READY_S = 8.0  # for all samplers to have begun


def ours(trace: Trace, pid: int) -> Counter[str]:
    """Samples on a core by the function that they were in or below, of the main thread."""
    names = trace.functions().set_index("func_id")["name"].to_dict()
    inside: dict[int, str | None] = {-1: None, -2: None}
    for row in trace.stacks().itertuples():
        name = names.get(row.func_id)
        inside[row.stack_id] = name if name in FUNCTIONS else inside[row.parent_id]
    samples = trace.samples()
    mine = samples[(samples["off_ns"] == 0) & (samples["tid"] == pid)]["stack_id"]
    return Counter(name for stack in mine if (name := inside[stack]))


def folded(lines: Iterable[str]) -> Counter[str]:
    """The same of collapsed stacks, `frame;frame count`, without those of the other thread."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rstrip("\n").rpartition(" ")
        words = [frame.replace(":", " ").replace("(", " ").split() for frame in stack.split(";")]
        inside = next((name for frame in reversed(words) for name in FUNCTIONS if name in frame), None)  # as ours() has it: `spend` calls the others
        if inside and not any("worker" in frame for frame in words):
            found[inside] += int(count)
    return found


def sampled(args: argparse.Namespace, folder: Path) -> None:
    """Start the program and every sampler, and print the table."""
    inside = [str(REPOSITORY / "scripts" / "in-root.sh"), "--at", str(TARGETS), "--at", str(folder), args.root] if args.root else []
    program = subprocess.Popen(
        [*inside, args.python, str(TARGETS / "shares.py"), "--wait", str(args.seconds), str(args.depth), *([] if args.threads else ["--alone"])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdin and program.stdout and program.stdout.readline().startswith("ready")
    pid, rate, length = str(program.pid), str(args.hz), str(round(args.seconds + READY_S + 5))
    commands = {
        "--sample": [sys.executable, "-m", "pytrace_ebpf", "attach", "-p", pid, "-q", "--sample", rate, "-o", str(folder / "ours")],
        **({"py-spy": [args.py_spy, "record", "-p", pid, "-r", rate, "-d", length, "-f", "raw", "-o", str(folder / "spy")]} if args.py_spy else {}),
        "3.15's": [
            *(["nsenter", "-t", pid, "-m", "-r"] if args.root else []), args.python, "-m", "profiling.sampling", "attach", "-a", "--mode", "cpu", "--collapsed",
            "-r", rate, "-d", length, "-o", str(folder / "own"), pid,
        ],
    }  # fmt: skip
    if args.rootless:
        commands["--rootless"] = [*commands["--sample"][:-1], str(folder / "outside"), "--rootless"]
    running = {name: subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=REPOSITORY) for name, words in commands.items()}
    time.sleep(READY_S)
    program.stdin.write("\n")
    program.stdin.flush()
    said = json.loads(program.stdout.readline().removeprefix("done "))
    program.wait()
    columns = {known: Counter({name: said[key].get(name, 0) for name in FUNCTIONS}) for known, key in ((ON_CORE, "spent"), (BY_WALL, "wall"))}
    for process in running.values():
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    columns["--sample"] = ours(pytrace_ebpf.open(folder / "ours"), program.pid)
    if args.rootless:
        columns["--rootless"] = ours(pytrace_ebpf.open(folder / "outside"), program.pid)
    for name, file in (("py-spy", "spy"), ("3.15's", "own")):
        written = sorted(folder.glob(f"{file}*"))
        if written:
            columns[name] = folded(written[0].read_text().splitlines())
        elif name in running and (stderr := running[name].stderr):
            print(f"{name}: {(stderr.read().decode().splitlines() or ['it wrote nothing'])[-1]}")
    table(columns)


def table(columns: dict[str, Counter[str]]) -> None:
    """One line for each function."""
    print(f"{'percent':10}" + "".join(f"{name:>21}" for name in columns))
    for function in FUNCTIONS:
        shares, cells = {name: 100 * counts[function] / max(counts.total(), 1) for name, counts in columns.items()}, []
        for name, counts in columns.items():
            cells.append(f"{shares[name]:6.1f}")
            if name not in (ON_CORE, BY_WALL) and counts.total():
                error = 100 * float(standard_error(max(counts[function], 1), counts.total())) / counts.total()
                off = abs(shares[name] - shares[ON_CORE if name.startswith("--") else BY_WALL]) / error
                cells[-1] += f" ±{error:4.1f} {off:4.1f} σ"
        print(f"{function:10}" + "".join(f"{cell:>21}" for cell in cells))
    print(f"{'samples':10}" + "".join(f"{counts.total() if name not in (ON_CORE, BY_WALL) else '':>21}" for name, counts in columns.items()))


def of_calls(trace: Trace) -> pd.DataFrame:
    """By Python function: exact (self time on a core, ns), calls, made (how many calls it made itself). What no Python function is, is its caller's."""
    tree = trace.tree()
    functions = trace.functions().set_index("func_id")["function_layer"]
    of, above = (dict(zip(tree["node_id"].tolist(), tree[name].tolist(), strict=True)) for name in ("func_id", "parent_id"))
    ours = tree["func_id"].map(functions) == "python"
    other = tree[~ours & (tree["depth"] >= 0)]
    rows = tree[ours]
    exact = rows.groupby("func_id")["self_on_cpu_ns"].sum().astype("float64")
    callers = other["parent_id"].map(of)
    exact = exact.add(other.groupby(callers)["self_on_cpu_ns"].sum().reindex(exact.index), fill_value=0.0)
    made = rows.groupby(rows["node_id"].map(above).map(of))["calls"].sum()
    return pd.DataFrame({"exact": exact, "calls": rows.groupby("func_id")["calls"].sum()}).assign(made=made).fillna(0.0)


def against_calls(trace: Trace, top: int) -> None:
    """Self times by function on a core, of calls and of samples, both as shares of their whole time in Python.
    Code that was gone before its name was read has a part of the samples'.

    Recording a call takes time at its beginning before the time is taken, and at its end after it: in calls this is the caller's, in samples the
    callee's, as its frame is there. How much it is of each call is estimated from all functions at once, by least squares.
    """
    taken, period = trace.samples()["ts"], trace.manifest["sampling"]["period_ns"]
    trace = trace.window(int(taken.min()), int(taken.max()))
    both, names = of_calls(trace), trace.functions().set_index("func_id")["qualname"]
    python = nodes(trace, native=False)
    found = python[python["depth"] >= 0].groupby("func_id")["self_on_cpu_ns"].sum().astype("float64")  # of which some may have no name any more
    both = both.assign(sampled=found).fillna(0.0)
    of, whole = round(found.sum() / period), both["exact"].sum()
    error = pd.Series(standard_error((both["sampled"] / period).to_numpy(np.int64), of) / of * whole, both.index)
    both["sampled"] *= whole / found.sum()
    more, weight = both["calls"] - both["made"], 1 / error**2
    known = (weight * more**2).sum()
    moved = (weight * more * (both["sampled"] - both["exact"])).sum() / known
    both["moved"] = both["exact"] + moved * more
    for name in ("exact", "moved"):
        both[f"{name}_off"] = (both["sampled"] - both[name]).abs() / error
    print(f"{of} periods on a core, {whole / 1e9:.2f} s by calls; of each call {moved:.1f} ±{known**-0.5:.1f} ns are the callee's in samples alone")
    print("percent: by calls, these nanoseconds moved, by samples ± one standard error; and by how many the first two differ from the third")
    for row in both.assign(error=error).sort_values("exact", ascending=False).head(top).itertuples():
        shares = (f"{100 * share / whole:7.2f}" for share in (row.exact, row.moved, row.sampled))
        print(" ".join(shares), f"±{100 * row.error / whole:5.2f} {row.exact_off:5.1f} {row.moved_off:5.1f}  {names.get(row.Index, '?')}")
    share = both[both["exact"] >= 0.01 * whole]
    for name, what in (("exact", "as they are"), ("moved", "with them moved")):
        within = ", ".join(f"{most} {(share[f'{name}_off'] <= most).sum()}" for most in (1, 2, 3))
        print(f"of {len(share)} functions with a percent and more within so many standard errors, {what}: {within}")


def main() -> None:
    """Measure, and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--python", default="/usr/bin/python3.11")
    arguments.add_argument("--root")
    arguments.add_argument("--seconds", type=float, default=20)
    arguments.add_argument("--hz", type=int, default=199)
    arguments.add_argument("--depth", type=int, default=1000, help="of the deepest function's stack")
    arguments.add_argument("--rootless", action="store_true", help="with --rootless --sample beside the others")
    arguments.add_argument("--threads", action="store_true", help="with another thread that wants the GIL, too")
    arguments.add_argument("--py-spy", default=shutil.which("py-spy"))
    arguments.add_argument("--trace", type=Path)
    arguments.add_argument("--top", type=int, default=15)
    args = arguments.parse_args()
    if args.trace:
        against_calls(pytrace_ebpf.open(args.trace), args.top)
        return
    with tempfile.TemporaryDirectory() as folder:
        sampled(args, Path(folder))


if __name__ == "__main__":
    main()
