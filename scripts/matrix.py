"""The table of docs/matrix.md, from the results of a test run: which Python gave equal counts, by which source, attached and launched.

scripts/matrix.py .build/matrix.xml... [docs/matrix.md] > .build/matrix.md

Of an earlier document the rows of Pythons that the run did not try are kept.
"""

import platform
import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

WAYS = {"test_calls_equal_what_the_interpreter_counts": "attached", "test_calls_of_a_launched_program_too": "launched"}
BUILDS = {"python": "Debian", "built": "pyenv"}
CASE = re.compile(r"(?P<test>\w+)\[(?P<build>[a-z]+)(?P<version>3\.\d+t?)-(?P<source>usdt|agent)-(?P<program>\w+)\]")
NOT_EQUAL = {"failure", "error", "skipped"}
COLUMNS = [(source, way) for source in ("usdt", "agent") for way in ("attached", "launched")]
TEXT = """\
# Which Pythons it was seen to trace

Written by `make test-matrix` from its own runs, on Linux {kernel}. Each cell says for how many of {programs} programs
the calls of every function were as many as the interpreter itself counts, with nothing lost: {names}.
Attached: the program ran already. Launched: counted from its first call on. A dash: that build has no function probes
that are reliable, and `--source usdt` is refused.

| Python | {head} |
|---|{rule}
{rows}
"""


class Result(NamedTuple):
    """How many programs were tried and how many of them agreed."""

    tried: set[str]
    equal: set[str]


def read(paths: list[Path]) -> dict[tuple[tuple[int, ...], str], dict[tuple[str, str], Result]]:
    """By (version, build), then by (source, way), of JUnit files; a case that was run again counts as it ended last."""
    found: dict[tuple[tuple[int, ...], str], dict[tuple[str, str], Result]] = defaultdict(lambda: defaultdict(lambda: Result(set(), set())))
    for case in (case for path in paths for case in ET.parse(path).iter("testcase")):
        match = CASE.fullmatch(case.get("name", ""))
        if match is None or match["test"] not in WAYS:
            continue
        major, minor, without_gil = re.fullmatch(r"(\d+)\.(\d+)(t?)", match["version"]).groups()  # type: ignore[union-attr]
        build = "free-threaded" if without_gil else BUILDS[match["build"]]
        result = found[(int(major), int(minor)), build][match["source"], WAYS[match["test"]]]
        result.tried.add(match["program"])
        result.equal.discard(match["program"])
        if NOT_EQUAL.isdisjoint(part.tag for part in case):
            result.equal.add(match["program"])
    return found


def rows_of(document: str) -> dict[tuple[tuple[int, ...], str], str]:
    """The rows of a table that was written before, by (version, build)."""
    rows = re.finditer(r"^\| (\d+)\.(\d+), ([\w-]+) \|.*$", document, re.MULTILINE)
    return {((int(row[1]), int(row[2])), row[3]): row[0] for row in rows}


def main() -> int:
    """Print the document; 1 where the file has no such test."""
    paths = [Path(word) for word in sys.argv[1:]]
    found = read([path for path in paths if path.suffix != ".md"])
    if not found:
        print(f"{' '.join(sys.argv[1:])}: no result of tests/bpf/test_counts.py", file=sys.stderr)
        return 1
    rows: dict[tuple[tuple[int, ...], str], str] = {}
    for document in (path for path in paths if path.suffix == ".md"):
        rows |= rows_of(document.read_text())
    for (version, build), results in found.items():
        cells = [f"{len(results[c].equal)} of {len(results[c].tried)}" if c in results else "-" for c in COLUMNS]
        rows[version, build] = f"| {'.'.join(map(str, version))}, {build} | " + " | ".join(cells) + " |"
    names = sorted(set().union(*(result.tried for results in found.values() for result in results.values())))
    head = " | ".join(f"`{source}`, {way}" for source, way in COLUMNS)
    kernel = platform.release().split("-")[0]
    print(
        TEXT.format(
            kernel=kernel,
            programs=len(names),
            names=", ".join(names),
            head=head,
            rule="---|" * len(COLUMNS),
            rows="\n".join(row for _, row in sorted(rows.items())),
        ),
        end="",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
