"""Runs files of CPython's own test suite (`python -m test`) under the tracer: with the same results, test by test. Prints a line a file, and a table for docs/programs.md.

    scripts/suites/cpython.py [--python PATH] [--slice 1/4] [--seconds 30] [--into FILE] [NAME]...

A file runs untraced first. One that fails there, or takes longer than --seconds, is not compared. One whose results differ runs again, untraced and traced: what differs
from itself is told apart from what differs by the tracer. --into: results as JSON, one line a file; files that are there already are not run again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

TRACER = [sys.executable, "-m", "pytrace_ebpf", "run", "-q", "--source", "agent", "--no-follow"]
SLOWER = 8  # times as long as untraced, and a minute, a file may take under the tracer
SAME, SLOW, FAILS, FLAKY, DIFFERS = "same", "too slow untraced", "fails untraced", "differs from itself", "differs"


def main() -> int:
    """1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--slice", default="1/1", help="which part of all files, of how many")
    parser.add_argument("--seconds", type=float, default=30, help="that a file may take untraced")
    parser.add_argument("--into", type=Path, help="file for the results")
    parser.add_argument("names", nargs="*", help="files to run; all where none is given")
    asked = parser.parse_args()
    part, parts = map(int, asked.slice.split("/"))
    found = [json.loads(line) for line in asked.into.read_text().splitlines()] if asked.into and asked.into.exists() else []
    done = {each["name"] for each in found}
    for name in (asked.names or files(asked.python))[part - 1 :: parts]:
        if name in done:
            continue
        result = compare(asked.python, name, asked.seconds)
        found.append(result)
        print(json.dumps(result), flush=True)
        if asked.into:
            with asked.into.open("a") as file:
                file.write(json.dumps(result) + "\n")
    counts = Counter(each["how"] for each in found)
    print(
        f"| {asked.python} | {sum(each['tests'] for each in found if each['how'] == SAME)} tests | "
        + ", ".join(f"{n} {how}" for how, n in counts.items())
        + " |"
    )
    return int(counts[DIFFERS] > 0)


def files(python: str) -> list[str]:
    """All that there are."""
    return subprocess.check_output([python, "-m", "test", "--list-tests"], text=True).split()


def compare(python: str, name: str, seconds: float) -> dict[str, object]:
    """How the results of a file compare, and in which tests they differ."""
    start = time.monotonic()
    plain, took = results([], python, name, seconds), time.monotonic() - start
    said = {"name": name, "tests": len(plain[1]), "seconds": round(took, 1), "differences": []}
    if plain[0] is None:
        return {**said, "how": SLOW}
    if plain[0] not in (0, 4):  # 4: nothing to run here
        return {**said, "how": FAILS}
    with tempfile.TemporaryDirectory() as scratch:
        patience = SLOWER * took + 60
        found = results([*TRACER, "-o", f"{scratch}/1", "--"], python, name, patience)
        if found == plain:
            return {**said, "how": SAME}
        again, traced = results([], python, name, patience), results([*TRACER, "-o", f"{scratch}/2", "--"], python, name, patience)
    differences = [f"exit code {traced[0]}"] if traced[0] != plain[0] else []
    unlike = [test for test in sorted(plain[1].keys() | traced[1].keys()) if traced[1].get(test) not in (plain[1].get(test), again[1].get(test))]
    differences += [f"{test}: {traced[1].get(test)}, untraced {plain[1].get(test)}" for test in unlike if found[1].get(test) == traced[1].get(test)]
    return {**said, "how": DIFFERS if differences else FLAKY, "differences": differences}


def results(before: list[str], python: str, name: str, seconds: float) -> tuple[int | None, dict[str, str]]:
    """The exit code, None where it took longer, and of each test what came of it."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [*before, python, "-m", "test", "--tempdir", scratch, "--junit-xml", str(report), name]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"])
                code = None
        return code, dict(outcomes(report)) if report.exists() else {}


def outcomes(report: Path) -> list[tuple[str, str]]:
    """(test, what came of it)."""
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
        found.append((case.get("name", ""), bad[0] if bad else case.get("result") or "passed"))
    return found


if __name__ == "__main__":
    sys.exit(main())
