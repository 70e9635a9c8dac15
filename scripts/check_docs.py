"""Figures and promises of README and the docs, each beside what the command that shows it says now: `make check-docs`.

    scripts/check_docs.py [--list]

What is compared stands in the page, so that the page cannot say one thing and this another. Figures of time are CPU time and may be up to SLACK times as large:
another machine is not this one, and one that others keep busy takes longer for the same: there a larger figure says nothing, and is no failure. Needs root; takes a
minute on a machine with nothing else to do. --list: what shows every other figure, section by section (doc_figures.py).
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import doc_figures
import pyarrow.parquet as pq

import pytrace_ebpf

REPOSITORY = Path(__file__).parent.parent
SLACK = 2.0
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
FIB = "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(27)"
LIBRARY = "import ast, json, tokenize, pathlib\nfor path in sorted(pathlib.Path(json.__file__).parent.glob('*.py')): list(tokenize.generate_tokens(path.open().readline))"

Told = Iterator[tuple[str, bool | None]]
"""Sentences, each with whether the page is right; None: the machine is too busy to tell."""
Check = Callable[[Path], Told]
"""It is given a folder for its files."""


def in_time(took: float, most: float) -> bool | None:
    """Whether that is no more than the page says, as far as can be told."""
    return took <= SLACK * most or (None if os.getloadavg()[0] > (os.cpu_count() or 1) else False)


def command(*words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-m", "pytrace_ebpf", *words], cwd=folder, env=environment, capture_output=True, text=True)


def recorded(folder: Path, name: str, program: str, *options: str) -> Path:
    done = command("run", "-q", *options, "-o", name, "--", PYTHON, "-c", program, folder=folder)
    if done.returncode:
        raise SystemExit(f"nothing could be recorded: {done.stderr.strip()}")
    return folder / name


def said(page: str, pattern: str) -> tuple[str, ...]:
    """What stands in a page. Ends the check where the page says nothing of the kind any more."""
    found = re.search(pattern, re.sub(r"\s+", " ", (REPOSITORY / page).read_text()))
    if found is None:
        raise SystemExit(f"{page} has nothing like {pattern}: change the check with the page.")
    return found.groups()


def disk(folder: Path) -> Told:
    low, high = map(float, said("README.md", r"\*\*Disk\*\*: (\d+) to (\d+) bytes a call"))
    for name, program in (("fib", FIB), ("tokenize", LIBRARY)):
        trace = recorded(folder, name, program)
        calls = pytrace_ebpf.open(trace).manifest["cost"]["calls"]
        each = sum(path.stat().st_size for path in (trace / "events").iterdir()) / calls
        yield f"{name}: {each:.1f} bytes a call of {calls:,}; README: {low:g} to {high:g}", low <= round(each) <= high


def agents_call(folder: Path) -> Told:
    low, high, old = map(float, said("README.md", r"\*\*agent\*\*: ([\d.]+) to ([\d.]+) µs a call \(([\d.]+) µs before 3\.12"))
    trace = pytrace_ebpf.open(recorded(folder, "cost", FIB))
    each = trace.manifest["cost"]["ns_per_call"] / 1000
    most = old if tuple(map(int, trace.manifest["target"]["python_version"].split(".")[:2])) < (3, 12) else high
    yield f"a call costs {each:.2f} µs; README: {low:g} to {most:g}", in_time(each, most)


def exit_codes(folder: Path) -> Told:
    recorded(folder, "codes", "pass")
    for what, words, code in (
        ("0 fine", ("info", "codes"), 0),
        ("2 usage", ("report", "codes", "--by", "moon"), 2),
        ("3 the target cannot be traced", ("run", "--", "no-such-program"), 3),
        ("5 not a trace", ("report", "/usr"), 5),
    ):
        said("README.md", f"Exit codes: .*{what}")
        done = command(*words, folder=folder)
        yield f"{' '.join(words)}: exit code {done.returncode}; README: {what}", done.returncode == code


def formats(folder: Path) -> Told:
    recorded(folder, "exported", "def f(): pass\nfor _ in range(100): f()")
    names = re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "docs" / "exports.md").read_text(), re.MULTILINE)
    for name in names:
        done = command("export", "exported", "--to", name, "-o", name, folder=folder)
        yield f"export --to {name}: {(folder / name).stat().st_size if not done.returncode else done.stderr.strip()} bytes", not done.returncode


def first_lines(folder: Path) -> Told:
    said("README.md", r"that of `run`, .* names the process alone")
    line = command("run", "-o", "line", "--", PYTHON, "-c", "pass", folder=folder).stderr.splitlines()[0]
    yield f"run begins with: {line}; README: it names the process alone", bool(re.fullmatch(r"tracing process \d+ until it ends", line))
    program = "import time\ndef wait(): time.sleep(0.5)\nwait()"
    recorded(folder, "answer", program)
    line = command("report", "answer", folder=folder).stdout.splitlines()[0]
    yield f"report begins with: {line}; quick start: one sentence on where the time went", "`wait`" in line


def probes_call(folder: Path) -> Told:
    _, high = map(float, said("README.md", r"\*\*probes\*\* \(`usdt`\): ([\d.]+) to ([\d.]+) µs a call"))
    done = command("run", "-q", "--source", "usdt", "-o", "probed", "--", PYTHON, "-c", FIB.replace("27", "18"), folder=folder)
    if done.returncode == 3 and not done.stdout:  # most Pythons have none
        yield f"no probes to measure here: {done.stderr.strip().splitlines()[-1]}", True
        return
    each = pytrace_ebpf.open(folder / "probed").manifest["cost"]["ns_per_call"] / 1000
    yield f"a call by probes costs {each:.2f} µs; README: up to {high:g}", in_time(each, high)


def parts_are_the_whole(folder: Path) -> Told:
    said("docs/reading-a-report.md", r"`wall = on CPU \+ run queue \+ GIL wait \+ blocked`")
    calls = pytrace_ebpf.open(recorded(folder, "whole", LIBRARY)).calls()
    parts = calls[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]]
    known = parts.notna().all(axis=1)
    wrong = int((parts[known].sum(axis=1) != calls.loc[known, "wall_ns"]).sum())
    yield f"of {int(known.sum()):,} calls whose four ways are known {wrong} have another sum; reading-a-report.md: none", known.any() and not wrong
    (most,) = map(float, said("docs/cost.md", r"\| `fib\(26\)` \| \*\*([\d.]+)\*\*"))
    rows = len(pytrace_ebpf.open(recorded(folder, "rows", FIB)).calls())
    size = sum(path.stat().st_size for path in (folder / "rows").rglob("calls/*.parquet")) / rows
    yield f"a row of calls/ takes {size:.1f} bytes; cost.md: up to {most:g}", 0 < size <= 1.2 * most


def every_report(folder: Path) -> Told:
    """Each question of the page on reports has an answer, or a sentence that says what to record."""
    trace = recorded(folder, "asked", "import json\ndef f(): return json.dumps([1])\nfor _ in range(100): f()")
    page = (REPOSITORY / "docs" / "reading-a-report.md").read_text().split("## Which report answers what")[1].split("##")[0]
    for by in re.findall(r"--by (\w+)", page):
        done = command("report", str(trace), "--by", by, folder=folder)
        sentences = done.stderr.strip().splitlines()
        yield (
            f"report --by {by}: exit code {done.returncode} {' '.join(sentences)}",
            done.returncode == 0 or (done.returncode == 2 and len(sentences) == 1),
        )


def first_and_again(folder: Path) -> Told:
    """The smallest trace of cost.md's table is of 1.3 million calls: this one is of 0.8."""
    first, again = map(
        float, (*said("docs/cost.md", r"\| first `report` \| ([\d.]+) s"), *said("docs/cost.md", r"\| any of them again \| [\d.]+ - ([\d.]+) s"))
    )
    recorded(folder, "large", FIB)
    for what, most in (("first", first), ("again", again)):
        before = os.times()
        command("report", "large", folder=folder)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        yield f"report, {what}: {cpu:.2f} s of CPU time; cost.md: {most:g} s", in_time(cpu, most)


def flipped_bits(folder: Path) -> Told:
    said("docs/format.md", r"`pytrace-ebpf info TRACE --verify` reads all")
    trace = recorded(folder, "flipped", "def f(): pass\nfor _ in range(1000): f()")
    yield "info --verify of a whole trace: exit code 0", command("info", "--verify", "flipped", folder=folder).returncode == 0
    parts = [part for part in sorted(trace.glob("*/*.parquet")) if pq.read_metadata(part).num_rows]  # the others hold but a schema, for other tools
    for part in parts:
        whole = part.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 2)):
            part.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            code = command("info", "--verify", "flipped", folder=folder).returncode
            if code != 5:
                yield f"a flipped bit at {at} of {part.relative_to(folder)}: exit code {code}", False
        part.write_bytes(whole)
    yield f"info --verify of single flipped bits in {len(parts)} parts with rows: exit code 5 but for those above", bool(parts)


def comparisons(folder: Path) -> Told:
    """One run each decides nothing; a program that does ten times as much fails."""
    said("README.md", r"1 `diff --fail-over` found something slower beyond chance")
    program = "def score(): return sum(i * i for i in range({}))\nfor _ in range(20): score()"
    for side, much in (("a", 2_000), ("b", 20_000)):
        for run in range(3):
            (folder / side).mkdir(exist_ok=True)
            recorded(folder, f"{side}/{run}", program.format(much))
    for what, words, code in (
        ("one run each", ("a/0", "b/0"), 0),
        ("three runs each", ("a", "b"), 1),
        ("the other way round", ("b", "a"), 0),
    ):
        done = command("diff", *words, "--fail-over", "20%", folder=folder)
        yield f"diff --fail-over of {what}: exit code {done.returncode} {done.stderr.strip()[:100]}", done.returncode == code


def constants(_: Path) -> Told:
    yield from doc_figures.constants()


CHECKS: tuple[Check, ...] = (
    constants, disk, agents_call, probes_call, exit_codes, formats, first_lines, parts_are_the_whole, every_report, first_and_again, flipped_bits, comparisons,
)  # fmt: skip


def show_list() -> None:
    """Print every section that has figures, with what shows them."""
    for each in doc_figures.sections():
        print(f"{each.page}, {each.heading or 'its beginning'}: {len(each.figures)} figures: {'; '.join(each.commands) or 'NOTHING SHOWS THEM'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    if parser.parse_args().list:
        show_list()
        return 0
    counts = {True: 0, False: 0, None: 0}
    with tempfile.TemporaryDirectory(prefix="check-docs-") as folder:
        for check in CHECKS:
            own = Path(folder) / check.__name__
            own.mkdir()
            for sentence, right in check(own):
                print(f"{ {True: 'ok   ', False: 'WRONG', None: 'BUSY '}[right] } {sentence}", flush=True)
                counts[right] += 1
    print(f"{counts[False]} of {sum(counts.values())} figures and promises are not so." if counts[False] else "All that could be told are so.")
    if counts[None]:
        print(f"Of {counts[None]} the machine is too busy to tell: others want its cores.")
    return int(counts[False] > 0)


if __name__ == "__main__":
    sys.exit(main())
