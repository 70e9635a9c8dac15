"""Whether the unit tests notice when the code is wrong: small changes (mutants) chosen by a seed, in Python and C, each tried by the tests that meet it.

    scripts/mutants.py [--count 200] [--seed 1] [--only REGEX] [--at-least 90]

Works in a copy of the tree. universalmutator makes the changes; those that leave the code as it is, or that no compiler takes, are passed over. A mutant is
killed when a test fails, or takes longer than --seconds. Tests that import the changed module run first, then those that reach it by one import more,
and so on up to --far. Exit code 1 where fewer than --at-least percent are killed.
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

from universalmutator import mutator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pytrace_ebpf"
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


def tests_of(changed: str, far: int) -> list[list[str]]:
    """Files of unit tests that reach a module, by how many imports that takes."""
    files = {module(path): path for top in (PACKAGE, "tests") for found in ROOT.glob(f"{top}/**/*.py") if (path := found.relative_to(ROOT))}
    reached, rings = {changed}, []
    for _ in range(far):
        new = {name for name, path in files.items() if name not in reached and imports(path) & reached}
        rings.append(sorted(str(files[name]) for name in new if files[name].match("tests/unit/test_*.py")))
        reached |= new
    return [ring for ring in rings if ring]


def survives(tree: Path, mutant: Mutant, far: int, seconds: int) -> bool | None:
    """Whether no test notices it; None where it does not compile."""
    target = tree / mutant.path
    target.write_text(mutant.text)
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        name = module(mutant.path)
        if mutant.path.suffix == ".c":
            name = C[str(mutant.path.parent)]
            if subprocess.run(["scripts/build-libraries.sh"], cwd=tree, capture_output=True).returncode:
                return None
        for ring in tests_of(name, far):
            words = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "-p", "no:cacheprovider", "--reruns", "0", *ring]
            try:
                done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, timeout=seconds)
            except subprocess.TimeoutExpired:
                return False
            if done.returncode not in (0, 5):
                return False
        return True
    finally:
        shutil.copyfile(ROOT / mutant.path, target)


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
    parser.add_argument("--far", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--at-least", type=float, default=90)
    args = parser.parse_args()
    killed = tried = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(Path(folder) / "tree")
        for mutant in chosen(args.only, args.seed):
            survived = survives(tree, mutant, args.far, args.seconds)
            if survived is None:
                continue
            tried, killed = tried + 1, killed + (not survived)
            said = "SURVIVES" if survived else "killed"
            print(f"{tried} {said}  {mutant.path}:{mutant.line}\n    - {mutant.before.strip()}\n    + {mutant.after.strip()}", flush=True)
            if tried == args.count:
                break
    print(f"\n{killed} of {tried} mutants were killed ({killed / tried:.0%}; seed {args.seed}).")
    return int(100 * killed < args.at_least * tried)


if __name__ == "__main__":
    sys.exit(main())
