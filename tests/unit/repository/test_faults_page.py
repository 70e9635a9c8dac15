"""docs/faults.md has each fault that is tried, by the words of its test, and how often it held."""

import re
import subprocess
import sys
from pathlib import Path

from scripts import faults

REPOSITORY = Path(__file__).parents[3]
ROW = re.compile(r"\| (?P<fault>.+?) \| (?P<held>\d+) of (?P<tried>\d+) \| .* \| `(?P<module>\w+)\.py`: `(?P<test>\w+)` \|")


def test_the_page_has_every_fault_and_all_of_its_tries_held() -> None:
    rows = [row for line in (REPOSITORY / "docs" / "faults.md").read_text().splitlines() if (row := ROW.fullmatch(line))]
    assert [(row["module"], row["test"], row["fault"]) for row in rows] == [(module, test, fault) for module, _, test, fault in faults.faults()]
    assert all(row["held"] == row["tried"] != "0" for row in rows), "make test-faults"


def test_a_try_that_failed_is_counted_and_one_that_is_missing_refused(tmp_path: Path) -> None:
    cases = [
        f'<testcase classname="tests.faults.{module}" name="{test}[{attempt}]"><properties><property name="lost s of samples" value="{attempt}"/>'
        f'<property name="said" value="so"/></properties>{"<failure/>" if attempt else ""}</testcase>'
        for module, _, test, _ in faults.faults()
        for attempt in range(3)
    ]

    def written(some: list[str]) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "faults.xml").write_text(f"<testsuites><testsuite>{''.join(some)}</testsuite></testsuites>")
        return subprocess.run([sys.executable, faults.__file__, tmp_path / "faults.xml"], capture_output=True, text=True)

    done = written(cases)
    assert (done.returncode, done.stdout.count("| 1 of 3 | 0 to 2 s of samples | so |")) == (0, len(cases) // 3), done.stderr
    assert written(cases[3:]).returncode == 1
