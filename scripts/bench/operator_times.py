"""What each operator takes by this tracer, from outside, and by torch.profiler, from inside, in runs in turn.

Totals per operator, medians of the runs, of operators that take 50 us or more on average: as recorded, less what tracing it and the
operators below cost (as `report --compensate`), and, to show what is chance, of the profiler in a run of its own against the
profiler. malloc is set to keep memory: else page faults, which differ from run to run, are most of what is seen. Needs
`make torch`.

    scripts/bench/operator_times.py [WORKLOAD...] [--runs 3] [--together] [-- OPTION of the workload...]

With --together both watch one run, so that nothing but what the probes themselves take is between them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from children.pytorch import KEEP_MEMORY, torch_python

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import COLUMNS, compensate
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.summary import costs

CHILD = Path(__file__).parent / "children" / "profiled.py"
WORKLOADS = Path(__file__).parents[1] / "workloads"
NETWORKS = ("kim_cnn", "image_cnn", "rnn", "gan", "resnet", "mobilenet")
LONG_US, NEAR, ATTACHING_S = 50, 0.15, 6
RATIOS = {"recorded": "as recorded", "less": "less what tracing cost", "profiler": "the profiler, in another run"}


def started(*words: str | Path) -> "subprocess.Popen[str]":
    """A program on PyTorch's Python, which has said "ready" and waits for a line."""
    command = [str(torch_python()), *map(str, words), "--wait"]
    process = subprocess.Popen(
        command, env=os.environ | KEEP_MEMORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    return process


def run(*words: str | Path) -> str:
    """What a program prints last. It waits as long as one that is attached to: meanwhile the kernel sorts out its memory."""
    process = started(*words)
    time.sleep(ATTACHING_S)
    return process.communicate("\n")[0].splitlines()[-1]


def traced(*words: str | Path) -> tuple[pd.DataFrame, str]:
    """Operators of a program from its "ready" on, by name: `recorded` and `less` us in all, `count`; and what it prints last."""
    process = started(*words)
    with tempfile.TemporaryDirectory() as scratch:
        attach = [sys.executable, "-m", "pytrace_ebpf", "attach", "--pid", str(process.pid), "-o", scratch + "/trace", "--layers", "torch"]
        tracer = subprocess.Popen(attach, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr
        tracer.stderr.readline()
        said = process.communicate("\n")[0].splitlines()[-1]
        tracer.wait()
        return by_name(pytrace_ebpf.open(scratch + "/trace")), said


def by_name(trace: Trace) -> pd.DataFrame:
    """`recorded` and `less` us of the operators of a trace, and `count`."""
    calls = trace.calls(columns=[*COLUMNS, "layer"])
    less = compensate(calls, *costs(calls, trace.manifest))["wall_ns"]
    calls = calls.assign(name=calls["func_id"].map(trace.functions().set_index("func_id")["name"]), recorded=calls["wall_ns"] / 1e3, less=less / 1e3)
    calls = calls[calls["layer"] == "operator"]
    # The profiler shows an operator, and the one of its name that is all it calls, as one.
    above = calls.set_index("call_id")["name"].reindex(calls["parent_id"]).to_numpy()
    alone = calls.groupby("parent_id")["call_id"].transform("size") == 1
    named = calls[~((above == calls["name"]) & alone)].groupby("name")
    return named[["recorded", "less"]].sum().assign(count=named.size())


def compare(network: str, runs: int, together: bool, options: list[str]) -> pd.DataFrame:
    """By operator of LONG_US or more: `us` a call by the profiler, `count`, and what RATIOS say of it."""
    mine, theirs, again = [], [], []
    for _ in range(runs):
        found, said = traced(CHILD, network, *options) if together else traced(WORKLOADS / f"{network}.py", *options)
        mine.append(found)
        for profiled, last in ((theirs, said if together else run(CHILD, network, *options)), (again, run(CHILD, network, *options))):
            profiled.append(pd.Series(json.loads(last)["total_us"]))
    seen, control = (pd.concat(each, axis=1).median(axis=1) for each in (theirs, again))
    count = mine[0]["count"]
    table = pd.DataFrame({"us": seen / count, "count": count})
    for name in ("recorded", "less"):
        table[name] = pd.concat([found[name] for found in mine], axis=1).median(axis=1) / seen
    table = table.assign(profiler=control / seen).dropna()
    return table[table["us"] >= LONG_US].sort_values("recorded")


def main() -> None:
    """Print a line for each network, and each operator that differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(NETWORKS)}; all of them by default")
    parser.add_argument("--runs", type=int, default=3, help="of each")
    parser.add_argument("--together", action="store_true", help="both watch the same run")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:at]), words[at + 1 :] or ["--threads", "1"]
    for network in args.networks or NETWORKS:
        table = compare(network, args.runs, args.together, options)
        print(f"{network}: {len(table)} operators of {LONG_US} us or more; within 15 % of the profiler")
        took = table["us"] * table["count"]
        for name, what in RATIOS.items():
            near = (table[name] - 1).abs() <= NEAR
            print(f"  {near.sum():3} of them, {took[near].sum() / took.sum():6.1%} of their time: {what}", flush=True)
        far = table[((table[list(RATIOS)] - 1).abs() > NEAR).any(axis=1)]
        if len(far):
            print(far.round({"us": 0} | dict.fromkeys(RATIOS, 2)).to_string())


if __name__ == "__main__":
    main()
