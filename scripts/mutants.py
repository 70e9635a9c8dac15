"""Whether the unit tests notice when the code is wrong: small changes (mutants) chosen by a seed, in Python and C, each tried by the tests that meet it.

    scripts/mutants.py [--count 200] [--seed 1] [--only REGEX] [--at-least 90] [--tests PATH...]

Works in a copy of the tree. universalmutator makes the changes; those that leave the code as it is, or that no compiler takes, are passed over. A mutant is
killed when a test fails that passes without it, or when they take longer than --seconds. All tests run once first, to see which lines each one runs:
of those that run the changed line the fastest are tried, MOST_S of them. Exit code 1 where fewer than --at-least percent are killed.
"""

import argparse
import ast
import contextlib
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from coverage import CoverageData
from universalmutator import mutator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pytrace_ebpf"
UNIT = "tests/unit"
MOST_S = 240.0  # of tests that try one mutant
PYTHON = [f"{PACKAGE}/**/*.py"]
C = {f"{PACKAGE}/rebuild": f"{PACKAGE}.rebuild.engine", "probes/agent": "tests.unit.agent_pythons"}  # folder: the module by which tests meet it
RULES = {".py": ["universal.rules", "python.rules"], ".c": ["universal.rules", "c_like.rules", "c.rules"]}
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|\s+", re.DOTALL)


@dataclass(frozen=True)
class Mutant:
    """One line changed."""

    path: Path  # below the root
    line: int
    before: str
    after: str

    @property
    def text(self) -> str:
        """The whole file with it."""
        lines = (ROOT / self.path).read_text().splitlines(keepends=True)
        lines[self.line - 1] = self.after
        return "".join(lines)


def meaning(path: Path, text: str) -> str | None:
    """What is left without comments, docstrings and layout; None for what is no program."""
    if path.suffix == ".c":
        return _COMMENT.sub(" ", text)
    try:
        compile(text, str(path), "exec", dont_inherit=True)
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.dump(tree)


@cache
def mutants_of(path: Path) -> list[tuple[int, str]]:
    """(line, the changed line) of all that universalmutator makes of a file."""
    lines = (ROOT / path).read_text().splitlines(keepends=True)
    with contextlib.redirect_stdout(io.StringIO()):
        made = mutator.mutants_regexp(lines, ruleFiles=RULES[path.suffix], ignorePatterns=[])
    return [(each[0], each[1]) for each in made]


def chosen(only: str, seed: int) -> Iterator[Mutant]:
    """Mutants without end: each line of code is as likely as any other."""
    files = sorted({path.relative_to(ROOT) for pattern in [*PYTHON, *(f"{folder}/*.c" for folder in C)] for path in ROOT.glob(pattern)})
    files = [path for path in files if re.search(only, str(path))]
    weights = [len((ROOT / path).read_text().splitlines()) for path in files]
    chance, met = random.Random(seed), set[tuple[Path, str]]()
    while True:
        (path,) = chance.choices(files, weights)
        if not mutants_of(path):
            continue
        line = chance.choice(sorted({number for number, _ in mutants_of(path)}))
        after = chance.choice([text for number, text in mutants_of(path) if number == line])
        before = (ROOT / path).read_text().splitlines(keepends=True)[line - 1]
        mutant = Mutant(path, line, before, after if after.endswith("\n") else after + "\n")
        changed = meaning(path, mutant.text)
        if changed is None or changed == meaning(path, (ROOT / path).read_text()) or (path, mutant.text) in met:
            continue
        met.add((path, mutant.text))
        yield mutant


def module(path: Path) -> str:
    """As it is imported."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def imports(path: Path) -> frozenset[str]:
    """The modules of the package and of the tests that a file names in its imports."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return frozenset(name for name in found if name.startswith((PACKAGE, "tests.")))


def importing(changed: str) -> set[str]:
    """Files of unit tests that import a module or, where none does, another one that imports it, and so on."""
    files = {module(path): path for top in (PACKAGE, "tests") for found in ROOT.glob(f"{top}/**/*.py") if (path := found.relative_to(ROOT))}
    reached, new = {changed}, {changed}
    while new:
        new = {name for name, path in files.items() if name not in reached and imports(path) & reached}
        if found := {str(files[name]) for name in new if files[name].match("test_*.py") and files[name].is_relative_to(UNIT)}:
            return found
        reached |= new
    return set()


class Suite:
    """The unit tests that pass: how long each takes, and which lines it runs, as one run of all of them showed."""

    def __init__(self, tree: Path, tests: list[str]) -> None:
        words = ["-n", "2", "--cov", PACKAGE, "--cov-context", "test", "--cov-report", "", "--junitxml", "tests.xml", *tests]
        pytest(tree, words, None)
        self.seconds = {
            f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}": float(case.attrib["time"])
            for case in ElementTree.parse(tree / "tests.xml").iter("testcase")
            if not {"failure", "error", "skipped"} & {each.tag for each in case}
        }
        self._data = CoverageData(str(tree / ".coverage"))
        self._data.read()
        self._tree = tree

    def at(self, path: Path, lines: set[int] | None = None) -> set[str]:
        """The tests that run any of these lines of a file; None: of its functions' lines."""
        by_line = self._data.contexts_by_lineno(str(self._tree / path))
        chosen = by_line.keys() if lines is None else by_line.keys() & lines
        return {context.rsplit("|", 1)[0] for line in chosen for context in by_line[line]} & self.seconds.keys()

    def of(self, mutant: Mutant) -> list[str]:
        """Those that may notice it, the fastest first, MOST_S in all."""
        found = self._of_c(mutant.path) if mutant.path.suffix == ".c" else self._of_python(mutant)
        if not found:
            files = importing(C[str(mutant.path.parent)] if mutant.path.suffix == ".c" else module(mutant.path))
            found = {test for test in self.seconds if test.split("::")[0] in files}
        chosen, whole_s = [], 0.0
        for test in sorted(found, key=lambda test: self.seconds[test]):
            whole_s += self.seconds[test]
            if whole_s > MOST_S:
                break
            chosen.append(test)
        return chosen

    def _of_python(self, mutant: Mutant) -> set[str]:
        text = (ROOT / mutant.path).read_text()
        lines, names = statement(ast.parse(text), mutant.line)
        if not names:
            return self.at(mutant.path, lines)
        pattern = re.compile(rf"\b(?:{'|'.join(names)})\b")  # what is made when the module is imported is met by who uses its name
        users = {path: path.read_text() for path in ROOT.glob(f"{PACKAGE}/**/*.py") if names and pattern.search(path.read_text())}
        found = set()
        for path, text in users.items():
            using = {number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)}
            found |= self.at(path.relative_to(ROOT), using)
        return found or self.at(mutant.path)

    def _of_c(self, path: Path) -> set[str]:
        """Those that run the Python which calls a function that the file offers, or its library's engine."""
        offered = re.findall(r"^OFFERED [^(]*?rebuild_(\w+)\(", (ROOT / path).read_text(), re.MULTILINE)
        calls = re.compile(rf"\.(?:{'|'.join(offered)})\(") if offered else None
        met = [file for file in (ROOT / path).parent.glob("*.py") if calls and calls.search(file.read_text())] or [(ROOT / path).parent / "engine.py"]
        return set().union(*(self.at(file.relative_to(ROOT)) for file in met)) if met[0].exists() else set()


def statement(tree: ast.Module, line: int) -> tuple[set[int], set[str]]:
    """The lines that run when the statement of `line` does, and the names that it gives where that is on import."""
    at: ast.stmt | None = None
    function = None
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.stmt) and min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]) <= line <= (
            node.end_lineno or 0
        ):
            at = node
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and line >= node.body[0].lineno:
                function = node
    if at is None:
        return set(), set()
    if isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):  # its head
        return set(range(at.body[0].lineno, (at.end_lineno or 0) + 1)), set()
    if function is None:
        targets = at.targets if isinstance(at, ast.Assign) else [at.target] if isinstance(at, ast.AnnAssign) else []
        return {line}, {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)} or {getattr(at, "name", "")} - {""}
    body = getattr(at, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else at.end_lineno or line
    return set(range(at.lineno, max(last, at.lineno) + 1)), set()


def pytest(tree: Path, words: list[str], seconds: float | None) -> str | None:
    """Run tests in the copy: the first that fails, "" where none does; None where they take longer."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--reruns", "0", *words]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return "" if done.returncode in (0, 5) else failed[1] if failed else "no test runs"


def built(tree: Path, path: Path) -> bool:
    """Whether what the file is part of is made anew, where it has to be."""
    return path.suffix != ".c" or not subprocess.run(["scripts/build-libraries.sh"], cwd=tree, capture_output=True).returncode


def killer(tree: Path, mutant: Mutant, suite: Suite, seconds: int) -> str | None:
    """The test that notices it, "" where none does; None where it does not compile. A test that fails without it too is taken for none."""
    target = tree / mutant.path
    while True:
        target.write_text(mutant.text)
        try:
            if not built(tree, mutant.path):
                return None
            tests = suite.of(mutant)
            (tree / "chosen").write_text("\n".join(tests))
            at_once = sum(suite.seconds[test] for test in tests) < 10
            found = pytest(tree, ["-x", "-n", "0" if at_once else "2", "@chosen"], seconds) if tests else ""
        finally:
            shutil.copyfile(ROOT / mutant.path, target)
        if found is None:
            return "takes too long"
        if found not in suite.seconds:
            return found
        built(tree, mutant.path)
        if pytest(tree, ["-n", "0", found], seconds) == "":
            return found
        del suite.seconds[found]


def copied(tree: Path) -> Path:
    """A copy of the working tree, with the libraries that are built."""
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    built = [str(path.relative_to(ROOT)) for top in (PACKAGE, "probes") for path in ROOT.glob(f"{top}/**/*.so")]
    for name in [*names.strip("\0").split("\0"), *built]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--tests", nargs="+", default=[UNIT], metavar="PATH", help="no others than these")
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--at-least", type=float, default=90)
    args = parser.parse_args()
    killed = tried = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(Path(folder) / "tree")
        suite = Suite(tree, args.tests)
        print(f"{len(suite.seconds)} tests pass.", flush=True)
        for mutant in chosen(args.only, args.seed):
            by = killer(tree, mutant, suite, args.seconds)
            if by is None:
                continue
            tried, killed = tried + 1, killed + bool(by)
            said = f"killed by {by}" if by else "SURVIVES"
            print(f"{tried} {said}\n    {mutant.path}:{mutant.line}\n    - {mutant.before.strip()}\n    + {mutant.after.strip()}", flush=True)
            if tried == args.count:
                break
    print(f"\n{killed} of {tried} mutants were killed ({killed / tried:.0%}; seed {args.seed}).")
    return int(100 * killed < args.at_least * tried)


if __name__ == "__main__":
    sys.exit(main())
