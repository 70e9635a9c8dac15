"""Names of files, help and messages are the field's words (docs/glossary.md), not words of our own for them."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytrace_ebpf.cli.main import COMMANDS, parser
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "pytrace_ebpf"
CODE = [path for folder in (PACKAGE, REPOSITORY / "probes") for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h") or path.is_dir()]
BANNED_NAMES = {
    "amounts", "applies", "asker", "away", "barred", "bell", "beneath", "choice", "compiled", "confined", "confined_child", "door", "family", "fits",
    "foresight", "given_up", "glance", "growing", "itself", "keeping", "kept", "late", "lower", "lowered", "mending", "moments", "near", "neighbours",
    "outlets", "outside", "own", "passed", "plain", "riding", "serving",
}  # fmt: skip
# As a user would read them; what ends in -s, -ed or -ing, too.
BANNED_WORDS = re.compile(
    r"\b(asker|barred|door|foresee|foreseen|foresight|glance|mend|outlet|riding|at the soonest|the four ways|the keeper)(s|ed|ing)?\b", re.IGNORECASE
)


def test_no_file_has_a_name_of_our_own_making() -> None:
    assert not sorted(str(path.relative_to(REPOSITORY)) for path in CODE if path.stem in BANNED_NAMES)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_in_the_fields_words(command: str) -> None:
    top = parser()
    below = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction)).choices
    said = " ".join((below[command] if command else top).format_help().split())
    assert not BANNED_WORDS.findall(said)


def texts_raised(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of the errors that a module raises."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_messages_are_in_the_fields_words() -> None:
    raised = [(path, line, text) for path in PACKAGE.rglob("*.py") for line, text in texts_raised(path)]
    assert len(raised) > 500
    assert not [f"{path.relative_to(REPOSITORY)}:{line}: {text}" for path, line, text in raised if BANNED_WORDS.search(text)]


def test_the_glossary_has_each_word_once_in_the_order_of_the_alphabet_and_is_linked() -> None:
    words = re.findall(r"^\| \*\*([^*]+)\*\*", (REPOSITORY / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(words) >= 30 and words == sorted(set(words), key=str.lower)
    assert "(glossary.md)" in (REPOSITORY / "docs" / "index.md").read_text()
