"""What a program is called where services are: its script or module, else its executable; never its arguments, which may hold secrets."""

import re
import shlex
from pathlib import PurePosixPath

from pytrace_ebpf.printable import printable

_MOST = 64  # characters
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*t?d?")


def service(command: str, executable: str = "") -> str:
    """The name of a program, by its command line (shell-quoted) and its executable; "" where neither says one."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    first = PurePosixPath(words[0]).name if words else PurePosixPath(executable).name
    return printable(_script(words[1:]) if _INTERPRETER.fullmatch(first) and len(words) > 1 else first)[:_MOST]


def _script(words: list[str]) -> str:
    at = 0
    while at < len(words):
        word = words[at]
        if word == "-m":
            return words[at + 1] if at + 1 < len(words) else "python"
        if word.startswith("-m") and not word.startswith("--"):
            return word[2:]
        if word == "-" or word.startswith("-c"):
            return "python"
        if not word.startswith("-"):
            return PurePosixPath(word).name
        at += 2 if word in _WITH_VALUE else 1
    return "python"
