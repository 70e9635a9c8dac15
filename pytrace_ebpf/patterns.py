"""What a pattern of --args, --include and the like means: which functions it fits, and what somebody may have meant where it fits none.

The agent (probes/agent/options.c) follows the same rules. docs/patterns.md explains them.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache

MAIN = "__main__"
_WITH_VALUE = "cmWXQ"  # options of Python that take a value; c and m end the options
_TYPED = re.compile(r"<(stdin|python-input)")
_FEW, _ALIKE = 3, 0.6
_MOST_MAINS = 1000
_MOST_NAMES, _LONGEST = 20_000, 200  # that are compared: each takes some microseconds


@dataclass(frozen=True)
class Main:
    """The program that a Python runs as its main one, by its command line."""

    file: str = ""  # as it was called, or <string> or <stdin>
    module: str = ""  # of -m

    @classmethod
    def of(cls, command: str) -> "Main":
        """By a command line as a shell has it; one that runs no Python fits nothing."""
        try:
            return cls._of(tuple(shlex.split(command)))
        except ValueError:
            return cls()

    @classmethod
    def _of(cls, words: tuple[str, ...]) -> "Main":
        rest = list(words[1:])
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word == "-":
                return cls(file="<stdin>" if word == "-" else word)
            if word.startswith("--"):
                rest = rest[1:] if word == "--check-hash-based-pycs" else rest
                continue
            for place, letter in enumerate(word[1:], 1):
                if letter in _WITH_VALUE:
                    value = word[place + 1 :] or (rest.pop(0) if rest else "")
                    if letter == "c":
                        return cls(file="<string>")
                    if letter == "m":
                        return cls(module=value)
                    break
        return cls(file="<stdin>")

    def has(self, file: str) -> bool:
        """Whether a code object of this file is the main program's."""
        if self.module:
            path = "/" + self.module.replace(".", "/")
            return file.endswith((f"{path}.py", f"{path}/__main__.py"))
        if self.file.startswith("<"):
            return file == self.file or (self.file == "<stdin>" and _TYPED.match(file) is not None)
        name = self.file.removeprefix("./").rstrip("/")
        paths = (self.file, name, f"{name}/{MAIN}.py") if name else ()
        return file in paths or (not name.startswith("/") and file.endswith(tuple(f"/{path}" for path in paths)))


class Mains:
    """The main programs of the processes of a recording: a file that is one's is taken for that in all."""

    def __init__(self, commands: Iterable[str] = ()) -> None:
        self._mains: dict[str, Main] = {}
        for command in commands:
            self.add(command)

    def add(self, command: str) -> None:
        """One more process's command line."""
        if command and command not in self._mains and len(self._mains) < _MOST_MAINS:
            self._mains[command] = Main.of(command)

    def have(self, file: str) -> bool:
        """Whether code of this file is one's."""
        return any(main.has(file) for main in self._mains.values())


def fits_file(pattern: str, file: str, module: str, is_main: bool) -> bool:
    """Whether a pattern means all that is in a file: by path, by its last name, by module or package, or as the main program."""
    if "/" in pattern:
        pattern = pattern.removeprefix("./")
        return fnmatchcase(file, pattern) or (not pattern.startswith("/") and fnmatchcase(file, f"*/{pattern}"))
    if is_main and fnmatchcase(MAIN, pattern):
        return True
    if fnmatchcase(file.rpartition("/")[2], pattern):
        return True
    if any(fnmatchcase(name, pattern) for name in _and_above(module)):
        return True
    return "." in pattern and any(fnmatchcase(name, pattern) for name in _by_folders(file, module))


def fits_package(pattern: str, file: str, module: str, is_main: bool) -> bool:
    """As fits_file, and by the folder that a file of the program's own lies in: what --include and --exclude mean."""
    return fits_file(pattern, file, module, is_main) or (
        "/" not in pattern and fnmatchcase(_folder(file, module), pattern) and _folder(file, module) != ""
    )


def fits_function(pattern: str, file: str, module: str, qualname: str, is_main: bool, is_bare: bool = False) -> bool:
    """Whether a pattern means a function: as fits_file, by its plain or qualified name, or by module and qualified name.

    `is_bare`: only its plain name is known, so that what a pattern has of its class is left open.
    """
    if fits_file(pattern, file, module, is_main):
        return True
    if "/" in pattern:
        return False
    if fnmatchcase(qualname, pattern) or fnmatchcase(qualname.rpartition(".")[2], pattern):
        return True
    modules = [module, *([MAIN] if is_main else []), *(_by_folders(file, module) if pattern.count(".") > 1 else [])]
    if any(fnmatchcase(f"{name}.{qualname}", pattern) for name in modules):
        return True
    return is_bare and _fits_bare(pattern, modules, qualname)


def fits_called(pattern: str, file: str, module: str, qualname: str, is_main: bool) -> bool:
    """As fits_function, of what a trace has: what is written in C, and operators, have no file, and are known by their whole name."""
    return fits_function(pattern, file, module, qualname, is_main) if file else fnmatchcase(qualname, pattern)


def nearest(pattern: str, functions: Iterable[tuple[str, str, str]]) -> list[str]:
    """Of functions, (file, module, qualified name) each, the names that are most like a pattern which fits none; the best first."""
    return nearest_names(
        pattern,
        (
            name
            for file, module, qualname in functions
            for name in (qualname, qualname.rpartition(".")[2], module, f"{module}.{qualname}", file.rpartition("/")[2])
        ),
    )


def nearest_names(pattern: str, known: Iterable[str]) -> list[str]:
    """The names that are most like a pattern which fits none of them; the best first."""
    names: dict[str, str] = {}  # in small letters, to what is shown
    for name in known:
        if len(name) <= _LONGEST and len(names) < _MOST_NAMES:
            names.setdefault(name.lower(), name)
    wanted = re.sub(r"[*?\[\]]", "", pattern).lower()
    tries = dict.fromkeys((wanted, wanted.rpartition(".")[2], wanted.rpartition("/")[2]))
    found = dict.fromkeys(names[name] for each in tries if each for name in get_close_matches(each, names, _FEW, _ALIKE))
    return list(found)[:_FEW]


def fitting(sentence_of: str, pattern: str, count: int, known: int, like: Sequence[str]) -> str:
    """How many functions a pattern of an option fits, a sentence without a full stop; `like`: what was nearest()."""
    if count:
        return f"{sentence_of} {pattern} fits {count:,} function{'s' if count > 1 else ''} so far"
    near = f"; the nearest names: {', '.join(like)}" if like else ""
    return f"{sentence_of} {pattern} fits none of the {known:,} function{'s' if known > 1 else ''} known so far{near}"


def _and_above(module: str) -> list[str]:
    parents = module.split(".")
    return [".".join(parents[:end]) for end in range(1, len(parents) + 1)]


@cache
def _is_library(file: str, module: str) -> bool:
    return "." in module or not file.endswith(f"/{module}.py")


def _by_folders(file: str, module: str) -> list[str]:
    """What a module of the program's own may be called, by the folders it lies in: orders.py of /srv/shop is shop.orders, too; and the packages above."""
    if not file.startswith("/") or _is_library(file, module):
        return []
    parts = re.sub(r"(/__init__)?\.\w+$", "", file).strip("/").split("/")
    return [".".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 2, len(parts) + 1)]


def _folder(file: str, module: str) -> str:
    return "" if _is_library(file, module) else file.rpartition("/")[0].rpartition("/")[2]


def _fits_bare(pattern: str, modules: Sequence[str], name: str) -> bool:
    head, dot, last = pattern.rpartition(".")
    if not dot or not fnmatchcase(name, last):
        return False
    return "." not in head or any(fnmatchcase(module, above) for module in modules for above in _and_above(head))
