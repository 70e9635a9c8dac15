"""Qualified names from source files, for Pythons whose code objects carry none (before 3.11).

A function is found again by the line its code object begins at (the first decorator's, if any) and its plain name.
"""

import os
from collections.abc import Callable, Hashable, Iterable
from itertools import takewhile

from pytrace_ebpf.record.parsing import sandbox
from pytrace_ebpf.record.parsing.source_index import LARGEST, Index
from pytrace_ebpf.record.process.pinned import Descriptor, Pinned
from pytrace_ebpf.record.process.program_start import began_ns
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.rights.program_files import ProgramFiles

_FROZEN, _MODULE = "<frozen ", "<module>"
_PATIENCE_S = 10.0
_MOST_FILES, _MOST_NAMES = 4096, 1_000_000  # kept

_Identity = tuple[int, ...]
_indexes: dict[_Identity, Index] = {}  # processes share their files

# (file, first line, name) -> qualified name, where the code object does not carry one
Qualify = Callable[[str, int, str], str | None]
# A file as a program calls it -> that file, open; None where there is none to be read
Open = Callable[[str], Descriptor | None]


class Qualifiers:
    """What names the functions of each process; `first` is the first one's, and for those that ended before they were looked at."""

    def __init__(self) -> None:
        self.first: Qualify = unknown
        self._first_key: Hashable = None

    def of(self, target: Target) -> Qualify:
        """For a process, which may have ended meanwhile."""
        if target.process.key == self._first_key:
            return self.first
        made = for_process(target.process, target.library)
        if self._first_key is None:
            self.first, self._first_key = made, target.process.key
        return self.first if target.process.has_ended() else made


def for_process(process: Pinned, library: str) -> Qualify:
    """`qualname(file, first_line, name)` for a process, through its own root and working directory and with its rights.

    `library` is its standard library's folder, where the sources of frozen modules are.

    A file that changed since the program began is not believed: nothing in a code object shows which class it is of.
    This goes on working after the process has ended.
    """
    files, since_ns = ProgramFiles(process), began_ns(process)
    if since_ns is None:
        return unknown

    def open_file(file: str) -> Descriptor | None:
        if not file.startswith(_FROZEN):
            return files.open(file, LARGEST, since_ns)
        module = f"{library}/{file[len(_FROZEN) : -1].replace('.', '/')}"
        return files.open(f"{module}.py", LARGEST, since_ns) or files.open(f"{module}/__init__.py", LARGEST, since_ns)

    return lambda file, first_line, name: qualname(open_file, file, first_line, name, process.key)


def unknown(_file: str, _first_line: int, name: str) -> str | None:
    """What for_process() gives, for a process of which nothing is known."""
    return name if name == _MODULE else None


def qualname(open_file: Open, file: str, first_line: int, name: str, of: Hashable = None) -> str | None:
    """The qualified name of the function `name` whose code begins at `first_line` of `file`, or None.

    None when the file cannot be read, does not parse, or holds no such function (it was edited meanwhile). Several
    functions there (two lambdas on a line) give what their names share. `of`: whose file it is, for sandbox.py.
    """
    if name == _MODULE or (file.startswith("<") and not file.startswith(_FROZEN)):
        return name if name == _MODULE else None
    opened = open_file(file)
    found = _index(opened, of).get((first_line, name), set()) if opened else None
    return _shared(found, name) if found else None


def _shared(names: Iterable[str], name: str) -> str:
    columns = zip(*(each.split(".") for each in names), strict=False)
    parts = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    return ".".join(parts if parts and parts[-1] == name else [*parts, name])


def _index(file: Descriptor, of: Hashable) -> Index:
    status = os.fstat(file.fileno())
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if identity not in _indexes:
        if len(_indexes) >= _MOST_FILES or sum(map(len, _indexes.values())) > _MOST_NAMES:
            _indexes.clear()
        _indexes[identity] = _read(file, of)
    return _indexes[identity]


def _read(file: Descriptor, of: Hashable) -> Index:
    try:
        rows = sandbox.parsers.ask("source", {}, [file], list[tuple[int, str, list[str]]], _PATIENCE_S, ("source", of))
    except ValueError:
        return {}
    return {(line, name): set(names) for line, name, names in rows}
