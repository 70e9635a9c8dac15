"""The table of functions: ids that probes hand out become dense func_ids, once per function."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pytrace_ebpf.record.frames import CodeInfo
from pytrace_ebpf.trace.schema import LAYERS

UNKNOWN = -1
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|python3(?:\.\d+)?(?:\.zip)?)/(.+)$")

# What is no Python function, by its number in LAYERS: how its name begins.
_NAMES = {LAYERS.index("gc"): "gc generation ", LAYERS.index("import"): "import "}

# (file, first line, name) -> qualified name, where the code object does not carry one
Qualify = Callable[[str, int, str], str | None]
# (pid, address of a code object) -> what it says, None where it is gone
ReadCode = Callable[[int, int], CodeInfo | None]


class Functions:
    """Every function seen, keyed by (file, qualified name, first line)."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str, int], int] = {}
        self._new: list[dict[str, Any]] = []
        self.places: list[tuple[str, str] | None] = []  # (file, module) by func_id; None for what is no Python function

    def intern(self, file: str, name: str, qualname: str | None, first_line: int, flags: int, qualify: Qualify) -> int:
        """The func_id of a function, `flags` being its co_flags. A `qualname` that does not end in `name` is not believed."""
        if not qualname or not qualname.endswith(name):
            qualname = qualify(file, first_line, name) or name
        return self._ids.get((file, qualname, first_line)) or self._add(file, name, qualname, first_line, flags, 0)

    def intern_layer(self, layer: int, name: str) -> int:
        """The func_id of what is no Python function, by its number in LAYERS and its name there (a generation, a module)."""
        name = _NAMES[layer] + name
        return self._ids.get(("", name, -layer - 1)) or self._add("", name, name, -layer - 1, 0, layer)

    def intern_native(self, layer: int, name: str, qualname: str, module: str, file: str) -> int:
        """The func_id of a native function; `module`: the library by its name, `file`: by its path, "" where that says no more."""
        return self._add(file, name, qualname, -layer - 1, 0, layer, module)

    def _add(self, file: str, name: str, qualname: str, first_line: int, flags: int, layer: int, module: str = "") -> int:
        func_id = self._ids.setdefault((file, qualname, first_line), len(self._ids))
        if func_id == len(self.places):
            module = module or (f"<{LAYERS[layer]}>" if layer else module_of(file))
            self.places.append(None if layer else (file, module))
            self._new.append(
                {
                    "func_id": func_id,
                    "file": file,
                    "name": name,
                    "qualname": qualname,
                    "first_line": -1 if layer else first_line,
                    "module": module,
                    "flags": flags,
                    "function_layer": LAYERS[layer],
                }
            )
        return func_id

    def take_new(self) -> list[dict[str, Any]]:
        """Rows of the `functions` table since the last call."""
        rows, self._new = self._new, []
        return rows

    def __len__(self) -> int:
        return len(self._ids)


def no_func_ids() -> np.ndarray:
    """func_ids by somebody else's ids, int32: UNKNOWN all of them."""
    return np.full(1024, UNKNOWN, np.int32)


def grown(func_ids: np.ndarray, largest: int) -> np.ndarray:
    """The same array, or a longer one where it has no place for the id `largest`."""
    if largest < len(func_ids):
        return func_ids
    return np.concatenate((func_ids, np.full(2 * largest - len(func_ids), UNKNOWN, np.int32)))


class ProbeIds:
    """Ids that one BPF program handed out -> func_ids."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._func_ids = no_func_ids()

    def introduce(self, rows: np.ndarray, qualify: Callable[[int], Qualify], read: ReadCode) -> None:
        """Take in function_event records; `qualify(pid)` names functions of that process.

        A BPF program cannot read memory that is not paged in, such as a frozen
        module's names: where it came back without a name, `read(pid, code)` is asked.
        """
        if not len(rows):
            return
        self._func_ids = grown(self._func_ids, int(rows["id"].max()))
        for row in rows:  # one step per function, not per call
            if row["layer"]:
                name = _text(row["name"]) or str(row["line"])
                self._func_ids[row["id"]] = self._functions.intern_layer(int(row["layer"]), name)
                continue
            pid, code = int(row["pid_tgid"]) >> 32, int(row["code"])
            file, name, qualname = _text(row["file"]), _text(row["name"]), _text(row["qualname"])
            first_line = int(row["first_line"]) if code else int(row["line"])
            if code and not qualname:
                info = read(pid, code)
                if info and info.first_line == first_line and info.file == (file or info.file) and info.name == (name or info.name):
                    file, name, qualname = info.file, info.name, info.qualname or ""
            self._func_ids[row["id"]] = self._functions.intern(file, name, qualname, first_line, int(row["flags"]), qualify(pid))

    def func_ids(self, ids: np.ndarray) -> np.ndarray:
        """Map an array of ids to func_ids, int32; what was never introduced is UNKNOWN."""
        known = np.where(ids < len(self._func_ids), ids, 0)
        return self._func_ids[known]


def module_of(file: str) -> str:
    """Dotted module name by the file's place below a library folder, else the file's stem; `<...>` stays."""
    if file.startswith("<"):
        return file
    match = _LIBRARY.match(file)
    path = match[1] if match else file.rpartition("/")[2]
    return re.sub(r"(/__init__)?\.\w+$", "", path).replace("/", ".")


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
