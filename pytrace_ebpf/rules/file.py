"""A file of rules: TOML whose table `rules` has a rule by name, and `names` patterns that rules call by one word. Or one that comes with the package."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.rules.grammar import WrongWordError, parsed
from pytrace_ebpf.rules.rule import Group, Rule

_MOST_BYTES = 1 << 20
_TABLES = ("names", "rules")
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*=\s*(.?)""")
_TABLE = re.compile(r"""\s*\[\s*["']?([\w-]+)["']?\s*\]""")


def shipped() -> list[str]:
    """The names of the files that come with the package."""
    folder = resources.files("pytrace_ebpf.rules") / "shipped"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def shipped_names(name: str) -> list[str]:
    """The patterns that files which come with the package call by this name."""
    documents = [tomllib.loads((resources.files("pytrace_ebpf.rules") / "shipped" / f"{file}.toml").read_text("utf-8")) for file in shipped()]
    return [pattern for document in documents for pattern in document.get("names", {}).get(name, ())]


def read(named: str) -> list[Rule]:
    """The rules of a file or, where none is called so, of the one of that name that comes with the package. Raises UsageError, with line and column."""
    path = Path(named)
    if not path.exists() and named in shipped():
        return read_text((resources.files("pytrace_ebpf.rules") / "shipped" / f"{named}.toml").read_text("utf-8"), f"{named}.toml")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{named} cannot be read ({error.strerror}); name a file of rules, or one of {', '.join(shipped())}.") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{named} is larger than 1 MiB: it is no file of rules.")
    try:
        return read_text(data.decode("utf-8"), named)
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        raise UsageError(f"{named}:{line}:{column}: it is not UTF-8.") from None


def read_text(text: str, named: str) -> list[Rule]:
    """The rules of a text in TOML; `named`: what to call it. Raises UsageError, with line and column."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT.search(str(error))
        line, column = (int(at[1]), int(at[2])) if at and at[1] else _end(text)
        raise UsageError(f"{named}:{line}:{column}: {_AT.sub('', str(error))}.") from None
    places = _Places(text, named)
    for table in document:
        if table not in _TABLES:
            places.fail((table, ""), f"`{table}` is none of {', '.join(_TABLES)}")
    tables = {table: document.get(table, {}) for table in _TABLES}
    for table, rows in tables.items():
        if not isinstance(rows, dict):
            places.fail((table, ""), f"`{table}` is a table: write [{table}]")
    groups = {name: _group(name, patterns, places) for name, patterns in tables["names"].items()}
    rules = [_rule(name, said, groups, places) for name, said in tables["rules"].items()]
    if not rules:
        raise UsageError(f'{named}:1:1: it has no rule; write one as NAME = "RULE" below [rules].')
    return rules


def _end(text: str) -> tuple[int, int]:
    lines = text.split("\n")
    return len(lines), len(lines[-1]) + 1


def _group(name: str, patterns: Any, places: "_Places") -> Group:
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, list) or not listed or not all(isinstance(each, str) and each for each in listed):
        places.fail(("names", name), f"`{name}` is a pattern, or a list of some")
    return tuple(listed)


def _rule(name: str, said: Any, groups: dict[str, Group], places: "_Places") -> Rule:
    if not isinstance(said, str):
        places.fail(("rules", name), f"`{name}` is a rule in quotation marks")
    try:
        return replace(parsed(name, said, groups), where=(places.named, places.line(("rules", name))))
    except WrongWordError as error:
        places.fail(("rules", name), str(error), error.column)


class _Places:
    """Where the keys of a text in TOML stand."""

    def __init__(self, text: str, named: str) -> None:
        self.named = named
        self._found = dict(_keys(text))

    def line(self, key: tuple[str, str]) -> int:
        """The line of a key (table, name), or of a table."""
        return self._found.get(key, (1, 1, 1))[0]

    def fail(self, key: tuple[str, str], said: str, within: int | None = None) -> NoReturn:
        """Raise UsageError for a key or, `within`, for what begins so far within its text."""
        line, column, value = self._found.get(key, (1, 1, 1))
        raise UsageError(f"{self.named}:{line}:{column if within is None else value + within}: {said}.")


def _keys(text: str) -> Iterator[tuple[tuple[str, str], tuple[int, int, int]]]:
    """Of each key its line, its column, and the column of the text that it has; of what tomllib takes, which has each key once."""
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if found := _TABLE.match(line):
            table = found[1]
            yield (table, ""), (number, found.start(1) + 1, 1)
        elif found := _KEY.match(line):
            name = next(each for each in found.groups() if each is not None)
            column = len(line) - len(line.lstrip()) + 1
            value = found.end() + (found[4] in ("'", '"'))
            yield ((table, name) if table else (name, "")), (number, column, value)
