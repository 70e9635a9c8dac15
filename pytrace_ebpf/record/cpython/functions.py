"""The table of functions: ids that probes hand out become dense func_ids, once per function."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from pytrace_ebpf.record.cpython.frames import CodeInfo
from pytrace_ebpf.record.cpython.holdings import Holdings, Owners
from pytrace_ebpf.record.cpython.lookups import Lookups, Names, Read
from pytrace_ebpf.record.cpython.qualnames import Qualify, unknown
from pytrace_ebpf.record.output.tables import columns_of
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.trace.layers import LAYERS
from pytrace_ebpf.trace.libraries import FOLDER
from pytrace_ebpf.trace.schema import LOSS_CLASSES

UNKNOWN = -1
_NAMES = ("file", "name", "qualname")
_MOST = 1 << 20  # functions: a program may invent any number, and each takes memory here
_LIBRARY = re.compile(FOLDER + "(.+)$")


class Functions(Recorder):
    """Every function seen, keyed by (file, qualified name, first line)."""

    def __init__(self, owners: Owners | None = None, forgets: bool = False) -> None:
        """`owners`: they are of processes of several users, of whom none may take all places. `forgets`: what nobody holds any more is forgotten."""
        self._owners = owners
        self._ids: dict[bytes, int] = {}  # by _key(): the names themselves would take three times the memory
        self._places: dict[str, tuple[str, str]] = {}  # by file
        self._new: list[dict[str, Any]] = []
        self.turned_away = 0  # functions for which there was no place: their calls are of UNKNOWN
        self.places: list[tuple[str, str] | None] = []  # (file, module) by func_id; None for what is no Python function. Not where it forgets
        self._next = 0
        self._lock = threading.Lock()  # names may be read beside the loop that takes in everything else
        self._holdings = Holdings(_MOST, forgets) if owners else None

    def intern(self, file: str, name: str, qualname: str | None, first_line: int, flags: int, qualify: Qualify, user: int = 0) -> int:
        """The func_id of a function, `flags` being its co_flags. `qualname`: the code object's own, which a program may have changed; "" or None for none.

        `user`: whose share of the places a new one takes.
        """
        qualname = qualname or qualify(file, first_line, name) or name
        return self._ids.get(_key(file, qualname, first_line)) or self._add(file, name, qualname, first_line, flags, 0, user=user)

    def reading(self, pid: int) -> AbstractContextManager[int]:
        """What is done within to learn functions of a process is charged to its user, who is told."""
        return self._owners.reading(pid) if self._owners else nullcontext(0)

    def user(self, pid: int) -> int:
        """Whose a process is, where they are of several users."""
        return self._owners.user(pid) if self._owners else 0

    def intern_layer(self, layer: int, name: str) -> int:
        """The func_id of what is no Python function, by its number in LAYERS and its name there (a generation, a module, time.sleep)."""
        name = LAYERS[layer].prefix + name
        return self._ids.get(_key("", name, -layer - 1)) or self._add("", name, name, -layer - 1, 0, layer)

    def intern_native(self, layer: int, name: str, qualname: str, module: str, file: str, user: int = 0) -> int:
        """The func_id of a native function; `module`: the library by its name, `file`: by its path, "" where that says no more."""
        return self._add(file, name, qualname, -layer - 1, 0, layer, module, user)

    def _add(self, file: str, name: str, qualname: str, first_line: int, flags: int, layer: int, module: str = "", user: int = 0) -> int:
        key = _key(file, qualname, first_line)
        with self._lock:
            if key in self._ids:
                return self._ids[key]
            if len(self._ids) >= _MOST or (self._holdings and not self._holdings.takes(self._next, key, user)):
                self.turned_away += 1
                return UNKNOWN
            func_id = self._ids[key] = self._next
            self._next += 1
            module = module or (f"<{LAYERS[layer].name}>" if layer else module_of(file))
            if self._holdings is None or not self._holdings.forgets:
                self.places.append(None if layer else self._places.setdefault(file, (file, module)))
            self._new.append(
                {
                    "func_id": func_id,
                    "file": file,
                    "name": name,
                    "qualname": qualname,
                    "first_line": -1 if layer else first_line,
                    "module": module,
                    "flags": flags,
                    "function_layer": LAYERS[layer].name,
                }
            )
            return func_id

    def hold(self, func_ids: Iterable[int]) -> None:
        """Keep these until they are released as often."""
        if self._holdings:
            with self._lock:
                self._holdings.hold(func_ids)

    def release(self, func_ids: Iterable[int]) -> None:
        """The counterpart of hold()."""
        if self._holdings:
            with self._lock:
                self._holdings.release(func_ids)

    def is_full(self, user: int) -> bool:
        """Whether a function of this user was turned away lately, as he has so many."""
        return self._holdings is not None and self._holdings.is_full(user)

    def forget(self) -> None:
        """To be called when a segment is closed: forget what nobody holds any more, nor did when the one before was closed; metadata() says which."""
        if self._holdings:
            with self._lock:
                for key in self._holdings.forget():
                    del self._ids[key]

    def metadata(self) -> dict[str, Any]:
        """Where it forgets: `forgotten`, the func_ids."""
        return {"forgotten": self._holdings.forgotten} if self._holdings and self._holdings.forgets else {}

    def cut(self) -> Rows:
        """Rows of the `functions` table since the last call."""
        with self._lock:
            rows, self._new = self._new, []
        return {"functions": [columns_of(rows)]}

    def uncut(self) -> list[tuple[str, str, str]]:
        """(file, module, qualified name) of the Python functions that the next cut() has."""
        with self._lock:
            return [(row["file"], row["module"], row["qualname"]) for row in self._new if row["file"]]

    def losses(self) -> np.ndarray:
        """Functions for which there was no place."""
        lost = super().losses()
        lost[LOSS_CLASSES.index("function_map")] = self.turned_away
        return lost

    def __len__(self) -> int:
        return len(self._ids)


def _key(file: str, qualname: str, first_line: int) -> bytes:
    return blake2b(f"{file}\0{qualname}\0{first_line}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def no_func_ids() -> np.ndarray:
    """An array func_id by another numbering's id (a BPF program's, an agent's), int32: UNKNOWN for all."""
    return np.full(1024, UNKNOWN, np.int32)


def grown(func_ids: np.ndarray, largest: int) -> np.ndarray:
    """The same array, or a longer one where it has no place for the id `largest`."""
    if largest < len(func_ids):
        return func_ids
    return np.concatenate((func_ids, np.full(2 * largest - len(func_ids), UNKNOWN, np.int32)))


class Code(NamedTuple):
    """What a BPF program, or a frame, says of a function."""

    file: str
    name: str
    qualname: str  # "" where that is not known
    first_line: int
    flags: int
    address: int  # of the code object where more is to be read from it, else 0
    put: Callable[[int], None]  # is told the func_id


def names_of_code(read: Callable[[Sequence[int]], Mapping[int, CodeInfo]], qualify: Callable[[], Qualify]) -> Read[Code]:
    """What names code objects of a process: `read`, asked for what those at some addresses say, and `qualify`, asked for what names functions by their source.

    A BPF program cannot read memory that is not paged in, such as a frozen module's names, nor names of any length.
    """

    def names(codes: Sequence[Code], plain: bool) -> list[Names]:
        addresses = sorted({code.address for code in codes if code.address})
        infos, by_source, found = read(addresses) if addresses and not plain else {}, unknown if plain else qualify(), []
        for file, name, qualname, first_line, _, address, _ in codes:  # one step per function, not per call
            info = infos.get(address)
            if info and info.first_line == first_line and info.file.startswith(file) and info.name.startswith(name):
                file, name, qualname = info.file, info.name, info.qualname or ""
            found.append(Names(file, name, qualname or by_source(file, first_line, name)))
        return found

    return names


class ProbeIds:
    """Ids that one BPF program handed out -> func_ids."""

    def __init__(self, functions: Functions, lookups: Callable[[int], Lookups[Code]]) -> None:
        """`lookups`: makes what names the functions of a process, see names_of_code()."""
        self._functions, self._make = functions, lookups
        self._func_ids = no_func_ids()
        self._lookups: dict[int, Lookups[Code]] = {}  # by process, where somebody waits for names
        self.pending: set[int] = set()  # ids of functions that have no names yet

    def introduce(self, rows: np.ndarray) -> None:
        """Take in function_event records, and the names that were found since the last time."""
        if len(rows):
            self._func_ids = grown(self._func_ids, int(rows["id"].max()))
            asked: dict[int, list[Code]] = {}
            for row, is_whole in zip(rows, _are_whole(rows).tolist(), strict=True):  # one step per function, not per call
                number, code = int(row["id"]), int(row["code"])
                if row["layer"]:
                    name = _text(row["name"]) or str(row["line"])
                    self._func_ids[number] = self._functions.intern_layer(int(row["layer"]), name)
                    continue
                file, name, qualname = (_text(row[field]) for field in _NAMES)
                first_line = int(row["first_line"]) if code else int(row["line"])
                described = Code(file, name, qualname, first_line, int(row["flags"]), 0 if is_whole else code, partial(self._put, number))
                pid = int(row["pid_tgid"]) >> 32
                if is_whole and pid not in self._lookups:
                    self._name(pid, described, described)
                else:
                    asked.setdefault(pid, []).append(described)
                    self.pending.add(number)
            for pid, codes in asked.items():
                self.ask(pid, codes)
        self.take()

    def ask(self, pid: int, codes: Sequence[Code]) -> None:
        """Have functions of a process named, after those that were introduced; take() does it."""
        if codes and pid not in self._lookups:
            self._lookups[pid] = self._make(pid)
        if codes:
            self._lookups[pid].ask(codes, any(code.address or not code.qualname for code in codes))

    def take(self) -> None:
        """Take in the names that were found."""
        for pid, lookups in list(self._lookups.items()):
            for code, names in lookups.take():
                self._name(pid, code, names)
            if lookups.since_ns is None:
                del self._lookups[pid]

    def _name(self, pid: int, code: Code, names: Names | Code) -> None:
        with self._functions.reading(pid) as user:
            code.put(self._functions.intern(names.file, names.name, names.qualname, code.first_line, code.flags, unknown, user))

    def _put(self, number: int, func_id: int) -> None:
        self._func_ids[number] = func_id
        self.pending.discard(number)

    def give_up(self, pid: int | None = None) -> None:
        """Plain names have to do for what a process waits for, None: for what any does."""
        for each, lookups in self._lookups.items():
            if pid in (None, each):
                lookups.give_up()

    @property
    def since_ns(self) -> int | None:
        """Since when somebody waits for names (CLOCK_MONOTONIC), None where nobody does."""
        return min((lookups.since_ns for lookups in self._lookups.values() if lookups.since_ns is not None), default=None)

    def func_ids(self, ids: np.ndarray) -> np.ndarray:
        """Map an array of ids to func_ids, int32; what has no name yet, or was never introduced, is UNKNOWN."""
        known = np.where(ids < len(self._func_ids), ids, 0)
        return self._func_ids[known]


def module_of(file: str) -> str:
    """Dotted module name by the file's place below a library folder, else the file's stem; `<...>` stays."""
    if file.startswith("<"):
        return file
    match = _LIBRARY.match(file)
    path = match[1] if match else file.rpartition("/")[2]
    return re.sub(r"(/__init__)?\.\w+$", "", path).replace("/", ".")


def _are_whole(rows: np.ndarray) -> np.ndarray:
    """Which function_event records have all names, and none that is cut off."""
    missing = rows["qualname"].astype("S1") == b""
    for name in _NAMES:
        missing |= np.char.str_len(rows[name]) >= rows[name].itemsize - 1  # its end may be cut off
    return ~missing


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
