"""The compiled library that rebuilds calls, as ctypes sees it; engine.h says what everything is."""

import ctypes
import functools
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytrace_ebpf import native_library
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.trace.states import NAMES

FILE = Path(__file__).with_name("rebuild.so")
_DTYPES = {"int64_t": np.int64, "int32_t": np.int32, "int16_t": np.int16, "uint8_t": np.uint8}


def _columns(*names: str) -> type[ctypes.Structure]:
    """A struct of pointers to columns, and how many rows they have."""
    return type("Columns", (ctypes.Structure,), {"_fields_": [*((name, c_void_p) for name in names), ("rows", c_size_t)]})


Switches = _columns("ts", "pid", "tid", "kind", "cpu", "state", "syscall", "address")
CpuTimes = _columns("ts", "pid", "tid", "on_cpu_ns", "runq_wait_ns")
Events = _columns("ts", "pid", "tid", "kind", "func_id", "frame", "line")
Acts = _columns("ts", "pid", "tid", "kind")
PathWaits = _columns("start", "until", "end", "next")
PathThreads = _columns("first", "born")
PathSpans = _columns("thread", "begin", "end")
PathOut = _columns("span", "thread", "start", "end", "wait", "through", "kind")
ReplaySteps = _columns("kind", "value", "locked")
ReplayThreads = _columns("first", "gil")


class ReplayHost(ctypes.Structure):
    """struct replay_host of replay.c."""

    _fields_ = [(name, c_int64) for name in ("cores", "core_ns", "gil_ns")] + [(name, c_size_t) for name in ("gils", "signals")]


class Busy(ctypes.Structure):
    """struct busy of cores.h."""

    _fields_ = [("pid", c_int64), *((name, c_void_p) for name in ("when", "total", "slope")), ("count", c_size_t)]


class Decoding(ctypes.Structure):
    """struct decoding of decode.c."""

    _fields_ = [
        ("since", c_int64), ("from_ns", c_int64), ("ns_per_stamp", c_double), ("first_ns", c_int64), ("last_ns", c_int64),
        ("func_ids", c_void_p), ("functions", c_uint32), ("lines", c_bool),
    ]  # fmt: skip


class Decoded(ctypes.Structure):
    """struct decoded of decode.c."""

    _fields_ = [(name, c_void_p) for name in ("ts", "kind", "func_id", "frame", "line")]


class Texts(ctypes.Structure):
    """struct texts of written.c."""

    _fields_ = [("text", c_char_p), ("start", c_void_p), ("count", c_size_t)]


class Form(ctypes.Structure):
    """struct form of written.c."""

    _fields_ = [("does", Texts), ("threads", Texts), ("end", Texts), ("origin", c_int64), ("as_varint", c_bool)]


_SUMS = [(name, "i8") for name in ("wall", *NAMES, "unknown_wall", "unknown", "unsplit_runq", "unsplit_waits")]
NODE = np.dtype(
    [
        ("parent", "u4"), ("thread", "u4"),
        ("func_id", "i4"), ("depth", "i4"), ("follows", "2u4"), ("site", "u4"), ("outermost", "u1"),
        ("calls", "i8"), ("total", _SUMS), ("self", _SUMS),
    ],
    align=True,
)  # fmt: skip
"""struct node. The first is the root of all; `thread` is NO_THREAD but in a thread's root."""
NO_THREAD = 0xFFFFFFFF
SUMS = np.dtype(_SUMS)
"""struct sums"""
SITE = np.dtype([("caller_id", "i4"), ("line", "i4"), ("func_id", "i4"), ("open", "u4"), ("calls", "i8"), ("total", _SUMS), ("self_wall", "i8")])
"""struct site"""
EDGE = np.dtype([("ts", "i8"), ("func_id", "i4"), ("thread", "u4")])
"""struct edge; func_id ENDS where the innermost call ends."""
ENDS = -2
ON_CORE = np.dtype([("ns", "i8"), ("func_id", "i4"), ("cpu", "i4")])
"""struct on_core"""
MEANWHILE = np.dtype([("wall", "i8"), ("busy", "i8")])
"""struct meanwhile"""
CONDITION = np.dtype([("over", "i8"), ("span", "i8"), ("what", "i4"), ("state", "i4")])
"""struct condition"""
HIT = np.dtype([(name, "i8") for name in ("ts", "start", "end", "key", "count", "waited")] + [("func_id", "i4"), ("condition", "i4")])
"""struct hit"""
OF_FUNCTION = np.dtype([("wants", "u4"), ("is_coroutine", "u4")])
"""struct of_function"""
NO_ANSWER = -2
CHARGES = 10
"""Kinds of amounts: struct charged is one of each."""
GONE_SINCE, PEAK, LEVEL = 8, 9, 10
SPENT = (*NAMES, "off", "unknown", "ready", "slept", "unseen", "calls")
"""Columns of rebuild_spent()."""

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "open": (c_void_p, [c_int64, c_bool, c_bool, c_int64]),
    "close": (None, [c_void_p]),
    "error": (c_int, [c_void_p]),
    "losses": (c_bool, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t]),
    "unseen": (c_bool, [c_void_p, c_void_p, c_size_t]),
    "functions": (c_bool, [c_void_p, c_void_p, c_void_p, c_uint32, c_uint32]),
    "has_call_lines": (None, [c_void_p]),
    "processes": (c_bool, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t]),
    "threads": (c_bool, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t]),
    "switches": (c_bool, [c_void_p, POINTER(Switches), c_int64]),
    "cputimes": (c_bool, [c_void_p, POINTER(CpuTimes), c_bool, c_int64, c_int64]),
    "states": (c_bool, [POINTER(Switches), c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p]),
    "segment": (None, [c_void_p, c_int64]),
    "events": (c_bool, [c_void_p, POINTER(Events), c_bool]),
    "take": (c_int64, [c_void_p, c_size_t, POINTER(c_bool)]),
    "finish": (c_bool, [c_void_p, c_int64]),
    "save": (c_size_t, [c_void_p, c_void_p, c_size_t]),
    "load": (c_bool, [c_void_p, c_char_p, c_size_t]),
    "rebase": (c_bool, [c_void_p, c_void_p, c_void_p]),
    "window": (None, [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_size_t]),
    "shard": (None, [c_void_p, c_uint32, c_uint32]),
    "spent": (c_size_t, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "state_of_threads": (c_size_t, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "ask": (None, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, *[c_void_p] * 7]),
    "settle": (None, [c_void_p, c_int64]),
    "charge": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t]),
    "uncharged": (None, [c_void_p, c_void_p]),
    "charged": (c_size_t, [c_void_p, POINTER(c_void_p)]),
    "want_edges": (None, [c_void_p]),
    "want_rows_of": (c_bool, [c_void_p, c_void_p, c_bool]),
    "edges": (c_size_t, [c_void_p, POINTER(c_void_p)]),
    "want_cores": (c_bool, [c_void_p, c_void_p, c_size_t]),
    "cores": (c_size_t, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "want_lines": (c_bool, [c_void_p, c_void_p, c_void_p]),
    "lines": (c_size_t, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "met_unknown": (c_bool, [c_void_p]),
    "new_tree": (c_bool, [c_void_p]),
    "packed": (c_size_t, [c_void_p, c_void_p]),
    "merge": (c_bool, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t]),
    "sites": (c_size_t, [c_void_p, POINTER(c_void_p)]),
    "site_size": (c_size_t, []),
    "merge_sites": (c_bool, [c_void_p, c_void_p, c_size_t]),
    "row_count": (c_size_t, [c_void_p]),
    "column": (c_void_p, [c_void_p, c_size_t]),
    "columns": (c_char_p, []),
    "node_count": (c_size_t, [c_void_p]),
    "nodes": (c_void_p, [c_void_p]),
    "node_size": (c_size_t, []),
    "open_calls": (c_size_t, [c_void_p, c_void_p, c_size_t]),
    "keys": (c_size_t, [c_void_p, c_void_p, c_size_t]),
    "pack_deltas": (c_size_t, [c_void_p, c_size_t, c_void_p, POINTER(c_bool)]),
    "dictionary_size": (c_size_t, []),
    "pack_numbers": (c_size_t, [c_void_p, c_void_p, c_bool, c_size_t, c_void_p]),
    "pack_small": (c_size_t, [c_void_p, c_size_t, c_void_p]),
    "decode": (c_bool, [c_void_p, c_size_t, POINTER(Decoding), POINTER(Decoded), c_size_t]),
    "value_texts": (c_size_t, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "objects": (c_size_t, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "gil_handoffs": (c_bool, [POINTER(Acts), c_size_t, c_void_p, c_size_t, c_void_p]),
    "critical_path": (c_size_t, [POINTER(PathWaits), POINTER(PathThreads), POINTER(PathSpans), POINTER(PathOut), c_size_t]),
    "replay": (c_bool, [POINTER(ReplaySteps), POINTER(ReplayThreads), POINTER(ReplayHost), c_void_p]),
    "paths": (c_size_t, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "numbers": (c_size_t, [c_void_p, c_size_t, c_uint32, c_void_p]),
    "written": (c_size_t, [c_void_p, c_size_t, POINTER(Form), c_void_p, c_size_t, POINTER(c_size_t)]),
    "stacks_open": (c_void_p, []),
    "stacks_close": (None, [c_void_p]),
    "stacks_take": (c_bool, [c_void_p, POINTER(Events)]),
    "stacks_forget": (c_bool, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "stacks_count": (c_size_t, [c_void_p]),
    "stacks_list": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "triggers_open": (c_void_p, [c_void_p, c_size_t]),
    "triggers_close": (None, [c_void_p]),
    "triggers_functions": (c_bool, [c_void_p, c_void_p, c_size_t]),
    "triggers_events": (c_bool, [c_void_p, POINTER(Events), c_bool]),
    "triggers_switches": (c_bool, [c_void_p, POINTER(Switches), c_bool, c_void_p, c_void_p, c_size_t]),
    "triggers_ended": (c_bool, [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t]),
    "triggers_judge": (None, [c_void_p, c_int64]),
    "triggers_hits": (c_size_t, [c_void_p, c_void_p]),
    "triggers_open_count": (c_size_t, [c_void_p]),
    "triggers_open_list": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]),
}  # fmt: skip


class Library:
    """The library's functions, without their prefix, as attributes; `columns`: names and dtypes of a row, in the library's order."""

    def __init__(self, file: Path) -> None:
        """Raises OSError where `file` does not load, HostError where it is of other sources than lie here."""
        library = native_library.load(file)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"rebuild_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        words = self.columns().decode().strip(",").split(",")
        self.row = {name: np.dtype(_DTYPES[kind]) for kind, name in (word.split() for word in words)}
        assert self.node_size() == NODE.itemsize and self.site_size() == SITE.itemsize

    def __getattr__(self, name: str) -> Any:  # what __init__ sets; without this no checker would know of it
        raise AttributeError(name)


@functools.cache
def library() -> Library:
    """Load it. Raises HostError where it was not built for this machine."""
    if not FILE.exists():
        raise HostError(
            "this installation has no compiled library to rebuild calls with: it is of the wheel for any machine, or was built without a C compiler; "
            "pip install --force-reinstall --no-binary pytrace-ebpf pytrace-ebpf compiles it where there is one, scripts/build-libraries.sh in a checkout"
        )
    try:
        return Library(FILE)
    except OSError as error:
        raise HostError(
            f"{FILE} does not load ({error}): calls are rebuilt by this compiled library; "
            "install a C compiler and run scripts/build-libraries.sh in a checkout, or install the package anew."
        ) from error


def columns(struct: type[ctypes.Structure], **arrays: npt.NDArray[Any]) -> ctypes.Structure:
    """A struct of pointers to `arrays`, one length all, which it keeps alive."""
    out = struct(*(array.ctypes.data for array in arrays.values()), len(next(iter(arrays.values()))))
    out.arrays = arrays
    return out


def view(address: int | None, dtype: "npt.DTypeLike", count: int, owner: object = None) -> npt.NDArray[Any]:
    """The library's memory as an array, without a copy; `owner`, whose memory it is, lives for as long as the array does."""
    dtype = np.dtype(dtype)
    if not count or not address:
        return np.zeros(0, dtype)
    memory = (c_uint8 * (count * dtype.itemsize)).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(memory), dtype)
