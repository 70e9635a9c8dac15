"""What a program is called where others can read it: its script or module, else its executable.

Never anything else of its command line, which may hold secrets: the words are read as CPython reads them, so that an option's value or the
code of -c is not taken for a script; and a name that is not spelled as a file or a module is not shown.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pytrace_ebpf.printable import printable

_MOST = 64  # characters
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*t?d?")
_FLAGS, _WITH_VALUE = frozenset("bBdEhiIJOPqRsStuvVx?"), frozenset("WX")  # CPython's Python/getopt.c, 3.8 to 3.15
_LONG, _LONG_WITH_VALUE = ("--version", "--help", "--help-all", "--help-env", "--help-xoptions"), "--check-hash-based-pycs"
_FILE, _MODULE = re.compile(r"\w[\w.+-]*"), re.compile(r"\w+(\.\w+)*")
_ITSELF = "python"


def service(command: str, executable: str = "") -> str:
    """The name of a program, by its command line (shell-quoted) and its executable; "" where neither says one.

    Where the first word is no interpreter's name the program has written that line itself, and the executable counts.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    first = PurePosixPath(words[0]).name if words else ""
    if not _INTERPRETER.fullmatch(first):
        return printable(PurePosixPath(executable).name)[:_MOST]
    return (_started(words[1:]) if len(words) > 1 else first)[:_MOST]


def service_of(row: Mapping[str, Any]) -> str:
    """The name of the service that a process (a row of schema.PROCESSES) belongs to; where nobody says one that of its program."""
    said = row.get("service_name")
    return printable(said)[:_MOST] if isinstance(said, str) and said else service(row.get("command") or "", row.get("executable") or "")


def _started(words: list[str]) -> str:
    """What an interpreter with these arguments runs."""
    rest = iter(words)
    for word in rest:
        if word == _LONG_WITH_VALUE:
            next(rest, None)
        elif word.startswith("--") and word not in _LONG:
            break
        elif not word.startswith("-"):
            return _spelled(PurePosixPath(word).name, _FILE)
        elif word == "-":
            break
        elif not word.startswith("--"):
            letters = word[1:]
            name = letters.lstrip("".join(_FLAGS))
            if name[:1] == "m":
                return _spelled(name[1:] or next(rest, ""), _MODULE)
            if name[:1] and name[0] not in _WITH_VALUE:  # -c, or none that is known
                break
            if name and len(name) == 1:
                next(rest, None)
    return _ITSELF


def _spelled(name: str, as_: re.Pattern[str]) -> str:
    return name if as_.fullmatch(name) and name.isprintable() else _ITSELF
