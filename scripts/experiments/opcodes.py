"""Which of CPython's instructions the training of a network executes, how often, and how many of them are specialized.

Trains an image CNN, an RNN and a GAN (scripts/workloads) on one thread, each twice: once with every instruction counted, and once
sampled, since while instructions are counted CPython specializes none.
"""

import argparse
from typing import Any

import pandas as pd
from recording import WORKLOADS, Report, directory, machine, record, say

from pytrace_ebpf.analyze.functions.exact import by_function, exact_opcodes
from pytrace_ebpf.analyze.samples.by_opcode import by_opcode
from pytrace_ebpf.record.filters import Filters
from pytrace_ebpf.trace.opcodes import specializable
from pytrace_ebpf.trace.reader import Trace

NETWORKS = ("image_cnn", "rnn", "gan")
HZ = 1999.0
SHOWN = 12
MANY = 1 << 30  # samples, for by_opcode's errors, which are not shown


def instructions(exact: Trace, sampled: Trace) -> pd.DataFrame:
    """By general instruction: hits; samples, and of these specialized ones; most hits first."""
    hits = exact_opcodes(exact.opcodes()).groupby("opcode")["hits"].sum()
    seen = by_opcode(sampled, int(sampled.manifest["sampling"]["period_ns"]), MANY)
    special = seen[(seen["name"] != seen["generic"]) & ~seen["name"].str.endswith("_ADAPTIVE")]
    samples, specialized = (rows.groupby("generic")["self_samples"].sum() for rows in (seen, special))
    table = pd.DataFrame({"hits": hits, "samples": samples, "specialized": specialized}).fillna(0).astype("int64")
    return table.sort_values("hits", ascending=False)


def section(report: Report, name: str, words: list[str], said: dict[str, Any], exact: Trace, sampled: Trace) -> None:
    """What was found of one network."""
    table, steps = instructions(exact, sampled), int(said["steps"])
    able = table[table.index.isin(specializable(str(exact.manifest["target"]["python_version"])))]
    report.head(f"{name}.py {' '.join(words)}")
    report.text(
        f"{table['hits'].sum() / steps:,.0f} instructions a step, of {steps} steps; {able['hits'].sum() / table['hits'].sum():.0%} of them CPython can specialize.",
        f"Of {able['samples'].sum():,} samples of such instructions {able['specialized'].sum() / max(1, able['samples'].sum()):.0%} were of a specialized form.",
    )
    report.table(
        ("instruction", "executed a step", "share", "samples", "specialized"),
        [
            (
                opcode, f"{row['hits'] / steps:,.0f}", f"{row['hits'] / table['hits'].sum():.1%}", f"{row['samples']:,}",
                f"{row['specialized'] / row['samples']:.0%}" if opcode in able.index and row["samples"] else None,
            )
            for opcode, row in table.head(SHOWN).iterrows()
        ],
    )  # fmt: skip
    functions = by_function(exact_opcodes(exact.opcodes()), exact.functions()).sort_values("hits", ascending=False)
    report.table(
        ("function", "instructions a step", "share"),
        [
            (row["qualname"], f"{row['hits'] / steps:,.0f}", f"{row['hits'] / table['hits'].sum():.1%}")
            for row in functions.head(SHOWN).to_dict("records")
        ],
    )


def main() -> None:
    """Record, count, write the report."""
    options = argparse.ArgumentParser()
    options.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    options.add_argument("--batches", type=int, default=24, help="steps of each")
    args, folder = directory("opcodes", __doc__, options)
    report = Report(folder, "Three networks in training: CPython's instructions")
    found = []
    for name in args.networks:
        words = ["--batches", str(args.batches), "--threads", "1"]
        program, traces = WORKLOADS / f"{name}.py", folder / "traces"
        exact, said = record(program, words, traces / name, layers=(), more={"filters": Filters(opcodes="exact")})
        sampled, _ = record(program, words, traces / f"{name}-sampled", layers=(), more={"source": "sample", "sample": HZ})
        found.append((name, words, said, exact, sampled))
    report.text(machine(found[0][3]))
    report.text(
        "Instructions are counted exactly, by their general form, which is what CPython executes meanwhile (`--opcodes exact`); from before the first step on, so optimizer states and what "
        "is imported late are in it. *Specialized* is of the samples of a second run (`--sample`) with the instruction of the innermost frame: those stand for time, not for executions, "
        "and an instruction that calls native code has all of its time."
    )
    for each in found:
        say(f"looking at {each[0]}")
        section(report, *each)
    report.write()


if __name__ == "__main__":
    main()
