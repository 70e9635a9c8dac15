"""The table of docs/faults.md, from the results of tests/faults: what was tried how often, what was lost, and what was said of it.

scripts/faults.py .build/faults.xml... > .build/faults.md
"""

import ast
import platform
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests" / "faults"
TEXT = """\
# Faults

Written by `make test-faults` from its own run, on Linux {kernel}. Each row is a fault; a try of it held when

* no program was harmed: each checks its own work, goes on to its end, and has the open files, mappings (but for the
  agent's library, which stays where it was loaded), threads and raised semaphores that it had before;
* nothing of the tracer was left when it had ended: no eBPF program (and so no probe), no process;
* what was recorded until then opens, and what is missing from it was counted;
* what was said of it is one sentence.

Lost: the least and the most of all tries. Samples are lost as far as they were in no window that was written (1 s long here, 10 s unless configured); events, as
far as they found no room. SIGKILL of `attach` at each moment of its work is tried by tests/bpf/test_kills.py, which is not counted here.

{parts}"""
HEAD = "| fault | held | lost | said | test |\n|---|---|---|---|---|\n"


@dataclass
class Result:
    """The tries of a fault."""

    tried: int = 0
    held: int = 0
    lost: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    said: str = ""

    def lost_in_words(self) -> str:
        """What was lost, with the least and the most of it."""
        some = {name: values for name, values in self.lost.items() if max(values)}
        return "; ".join(f"{_range(values)} {name}" for name, values in some.items()) or "nothing"


def _range(values: list[float]) -> str:
    least, most = (f"{round(edge, 1):,.10g}" for edge in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def faults() -> Iterator[tuple[str, str, str, str]]:
    """(module, what the module is about, test, fault) of each that there is."""
    for path in sorted(TESTS.glob("test_*.py")):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield path.stem, ast.get_docstring(tree) or "", node.name, (ast.get_docstring(node) or "").strip()


def read(paths: list[Path]) -> dict[tuple[str, str], Result]:
    """By (module, test), of JUnit files."""
    found: dict[tuple[str, str], Result] = defaultdict(Result)
    for case in (case for path in paths for case in ET.parse(path).iter("testcase")):
        result = found[case.get("classname", "").rpartition(".")[2], case.get("name", "").partition("[")[0]]
        if case.find("skipped") is not None:
            continue
        result.tried += 1
        result.held += case.find("failure") is None and case.find("error") is None
        for each in case.iter("property"):
            name, value = each.get("name", ""), each.get("value", "")
            if name == "said":
                result.said = value or result.said
            elif name.startswith("lost "):
                result.lost[name.removeprefix("lost ")].append(float(value))
    return found


def main() -> int:
    """Print the document; 1 where a fault was not tried."""
    results = read([Path(path) for path in sys.argv[1:]])
    parts: dict[str, list[str]] = defaultdict(list)
    for module, about, test, fault in faults():
        result = results.get((module, test))
        if result is None or not result.tried:
            print(f"no result of {test} in tests/faults/{module}.py", file=sys.stderr)
            return 1
        said = result.said.replace("|", "\\|") or "-"
        parts[about].append(f"| {fault} | {result.held} of {result.tried} | {result.lost_in_words()} | {said} | `{module}.py`: `{test}` |\n")
    kernel = platform.release().split("-")[0]
    print(TEXT.format(kernel=kernel, parts="\n".join(f"## {about}\n\n{HEAD}{''.join(rows)}" for about, rows in parts.items())), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
