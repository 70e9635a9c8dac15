"""Runs test suites of well-known libraries, and programs of pyperformance, under the tracer: with the same results, and with as many calls of every
function as an independent counter inside them counts (counter.py). Prints a table for docs/programs.md.

    scripts/suites/suites.py [--python PATH]... [--source agent|usdt] [--only NAME]...

Each program runs twice with the counter, and once with the tracer. Functions that the two counts differ in already (by time, or by chance) are not
compared, and the table says how many these were. Where the trace differs in others, the counter runs up to three times more, in case it comes to differ in
these from itself. What is needed is fetched by pip into .build/suites, once.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pytrace_ebpf
from pytrace_ebpf.trace.kinds import CallKind
from pytrace_ebpf.trace.reader import Trace

COUNTER = Path(__file__).with_name("counter.py")
PLACE = Path(__file__).parents[2] / ".build" / "suites"
PACKAGES = (
    "pytest==9.2.0", "pyperf==2.11.0", "hypothesis==6.170.17", "attrs==26.1.0", "click==8.5.1", "itsdangerous==2.2.0", "more-itertools==11.2.1",
    "jinja2==3.1.6", "markupsafe==3.0.4", "trio==0.35.0", "freezegun", "cloudpickle", "pyperformance==1.14.0",
)  # fmt: skip
SUITES = {"attrs-26.1.0": "tests", "click-8.5.1": "tests", "itsdangerous-2.2.0": "tests", "more_itertools-11.2.1": "tests", "jinja2-3.1.6": "tests"}
BENCHMARKS = (
    "async_generators",
    "deepcopy",
    "generators",
    "json_dumps",
    "logging",
    "nqueens",
    "pickle",
    "richards",
    "raytrace",
    "typing_runtime_protocols",
)
BEGINS = (CallKind.ENTRY, CallKind.RESUME)
FINDS = "<frozen importlib._bootstrap>", "_find_and_load"  # most of its calls are imports in a trace, which have the name of the module
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Program:
    """What is run, in which folder."""

    name: str
    words: list[str]
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """What a program said and did, and the calls of its functions."""

    code: int
    said: str
    calls: Counter[Key]
    lost: int = 0


def main() -> int:
    """Print the table; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="an interpreter; /usr/bin/python3.11 where none is given")
    parser.add_argument("--source", default="agent", choices=["agent", "usdt"])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    asked = parser.parse_args()
    print("| program | Python | source | result | calls | functions | not compared | equal |\n|---|---|---|---|---|---|---|---|", flush=True)
    good = True
    for python in asked.python or ["/usr/bin/python3.11"]:
        prepared = prepare(python)
        for program in programs(prepared):
            if not asked.only or program.name in asked.only:
                good &= compare(program, prepared, asked.source)
    return 0 if good else 1


def prepare(python: str) -> Path:
    """The interpreter of a virtual environment with what is needed."""
    version = subprocess.check_output([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True).strip()
    folder = PLACE / version
    made = folder / "made"
    if not made.exists() or made.read_text() != repr(PACKAGES):
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
        made.write_text(repr(PACKAGES))
    for suite in SUITES:
        if not (PLACE / suite).exists():
            name, _, release = suite.rpartition("-")
            words = ["download", "-q", "--no-deps", "--no-binary", name, "--disable-pip-version-check", f"{name}=={release}", "-d", str(PLACE)]
            subprocess.run([folder / "bin" / "python", "-m", "pip", *words], check=True)
            subprocess.run(["tar", "-C", PLACE, "-xf", PLACE / f"{suite}.tar.gz"], check=True)
    return folder / "bin" / "python"


def programs(python: Path) -> list[Program]:
    """All of them."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:warnings", "-p", "patient", "--hypothesis-seed=0"]
    suites = [Program(suite.replace("_", "-"), ["-m", "pytest", *options, tests], PLACE / suite) for suite, tests in SUITES.items()]
    (data,) = (python.parents[1]).glob("lib/python*/site-packages/pyperformance/data-files/benchmarks")
    options = ["--worker", "--loops=1", "--values=1", "--warmups=0", "--pipe=1"]
    benchmarks = [Program(f"pyperformance {name}", [str(data / f"bm_{name}" / "run_benchmark.py"), *options], PLACE) for name in BENCHMARKS]
    return suites + benchmarks


def compare(program: Program, python: Path, source: str) -> bool:
    """Print a program's row; False where something differs."""
    counts = [counted(program, python) for _ in range(2)]
    found = traced(program, python, source)
    while True:
        first, *others = counts
        unstable = {key for other in others for key in first.calls.keys() | other.calls.keys() if first.calls[key] != other.calls[key]}
        keys = (first.calls.keys() | found.calls.keys()) - unstable
        unequal = {key: (first.calls[key], found.calls[key]) for key in sorted(keys) if first.calls[key] != found.calls[key]}
        if not unequal or len(counts) == 5:
            break
        counts.append(counted(program, python))
    same = (first.code, first.said) == (found.code, found.said)
    version = python.parents[1].name
    told = "the same" if same else f"{first.code} {first.said!r}, traced {found.code} {found.said!r}"
    equal = "all" if not unequal else f"{len(keys) - len(unequal)}, not {list(unequal.items())[:5]}"
    if found.lost:
        equal += f"; {found.lost} lost"
    calls = sum(found.calls[key] for key in keys)
    print(f"| {program.name} | {version} | {source} | {told} | {calls:,} | {len(keys):,} | {len(unstable)} | {equal} |", flush=True)
    return same and not unequal and not found.lost


def run(program: Program, words: list[str]) -> tuple[int, str]:
    """(exit code, the last line that it wrote, without times)."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(COUNTER.parent)}
    with tempfile.TemporaryDirectory(prefix="suites-") as place:
        environment |= {"TMPDIR": place, "HYPOTHESIS_STORAGE_DIRECTORY": place}  # else it tries again what failed before, or was slow
        done = subprocess.run(words, cwd=program.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return done.returncode, re.sub(r" in [\d.]+s.*", "", lines[-1]) if lines and " in " in lines[-1] else ""


def counted(program: Program, python: Path) -> Outcome:
    """Run it with the counter."""
    with tempfile.NamedTemporaryFile() as result:
        code, said = run(program, [str(python), str(COUNTER), result.name, *program.words])
        rows = json.loads(Path(result.name).read_text())
    calls: Counter[Key] = Counter()
    for file, name, line, count in rows:
        if (file, name) != FINDS:
            calls[settled(file), name, line] += count
    return Outcome(code, said, calls)


def traced(program: Program, python: Path, source: str) -> Outcome:
    """Run it with the tracer."""
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        words = [sys.executable, "-m", "pytrace_ebpf", "run", "--source", source, "--no-follow", "-o", f"{folder}/t", "--"]
        code, said = run(program, [*words, str(python), str(COUNTER), "-", *program.words])
        trace = pytrace_ebpf.open(Path(folder, "t"))
        return Outcome(code, said, calls_of(trace), sum(trace.manifest["lost"].values()))


def calls_of(trace: Trace) -> Counter[Key]:
    """Entries by function between begin() and end() of counter.py."""
    functions = trace.functions().set_index("func_id")
    functions = functions[functions["file"] != ""]  # not collections and imports
    events = trace.events(columns=["ts", "tid", "kind", "func_id"])
    ours = functions[functions["file"] == str(COUNTER)]
    begin, end = (events[events["func_id"].isin(ours.index[ours["name"] == name])]["ts"].max() for name in ("begin", "end"))
    within = events[np.isin(events["kind"], [kind.value for kind in BEGINS]) & events["ts"].between(begin, end, "neither")]
    calls: Counter[Key] = Counter()
    for number, count in within[within["func_id"].isin(functions.index)]["func_id"].value_counts().items():
        row = functions.loc[number]
        if row["file"] != str(COUNTER) and (row["file"], row["name"]) != FINDS:
            calls[settled(row["file"]), row["qualname"], int(row["first_line"])] += int(count)
    return calls


def settled(file: str) -> str:
    """A file's name, without the part of temporary folders' and files' names that is another in each run."""
    return re.sub(r"(/suites-|/tmp)[a-z0-9_]{8}(?=[/.])", r"\1*", file)


if __name__ == "__main__":
    sys.exit(main())
