"""A thread's calls as one sequence per layer (module, python, operator, blas, cuda, ...), and the links between them."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.layers import LAYERS, NATIVE

# From the top down. A module is a Python call too and stands in both.
_INTERNAL = [layer.name for layer in LAYERS if layer not in NATIVE]
ORDER = ("module", _INTERNAL[0], *(layer.name for layer in NATIVE), *_INTERNAL[:0:-1])
COLUMNS = ("call_id", "parent_id", "last_descendant_id", "layer", "func_id")
_MODULE_CALL = "torch.nn.modules.module"  # here lie _wrapped_call_impl, _call_impl and its inner function

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def named_layers(calls: pd.DataFrame, functions: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`calls` of one thread, in the order of call_id, by the name of their layer, those of ORDER that there are.

    `calls` needs COLUMNS, `functions` those of schema.FUNCTIONS. Each table holds the rows of `calls` of that layer with
    all their columns, qualname, and for each layer present `in_LAYER`: call_id (int64) of the innermost entry of that
    layer that contains the row, other than itself; -1 where none does.
    """
    parent = parent_rows(calls)
    of = {name: (calls["layer"] == name).to_numpy(bool) for name in ORDER} | {"module": modules(calls, functions)}
    present = [name for name in ORDER if of[name].any()]
    ids = np.append(calls["call_id"].to_numpy(np.int64), -1)
    links = {f"in_{name}": ids[enclosing(parent, of[name])] for name in present}
    calls = calls.assign(qualname=_of_functions(calls, functions, "qualname"), **links)
    return {name: calls[of[name]].reset_index(drop=True) for name in present}


def modules(calls: pd.DataFrame, functions: pd.DataFrame) -> Bools:
    """Mask of the calls that are nn.Module's work: `forward`, called by torch's own Module._call_impl.

    Needs COLUMNS. Where those frames were not recorded (--exclude, --max-depth) a module cannot be distinguished from other functions.
    """
    name, module = (_of_functions(calls, functions, column) for column in ("name", "module"))
    calling = np.append(module == _MODULE_CALL, False)
    return (name == "forward") & calling[parent_rows(calls)]


def contained(upper: pd.DataFrame, lower: pd.DataFrame) -> tuple[Ints, Ints]:
    """(first, stop) per row of `upper`: lower.iloc[first:stop] are the entries of `lower` that lie in it, at any distance.

    Both are tables of named_layers() of one thread.
    """
    ids = lower["call_id"].to_numpy(np.int64)
    first = np.searchsorted(ids, upper["call_id"].to_numpy(np.int64), side="right")
    return first, np.searchsorted(ids, upper["last_descendant_id"].to_numpy(np.int64), side="right")


def _of_functions(calls: pd.DataFrame, functions: pd.DataFrame, column: str) -> npt.NDArray[np.object_]:
    """`column` of each call's function, "" where that is not known."""
    values = np.append(functions[column].to_numpy(object), "")
    return values[pd.Index(functions["func_id"]).get_indexer(calls["func_id"])]


def parent_rows(calls: pd.DataFrame) -> Ints:
    """Per call (call_id, parent_id; in the order of call_id) the row of its parent; -1 where that is not among them."""
    ids, parent = (calls[c].to_numpy(np.int64) for c in ("call_id", "parent_id"))
    if not len(ids):
        return np.zeros(0, np.int64)
    at = np.searchsorted(ids, parent).clip(max=len(ids) - 1)
    return np.where(ids[at] == parent, at, -1)


def enclosing(parent: Ints, wanted: Bools) -> Ints:
    """Per row the nearest row above it that is `wanted`, -1 for none. Each round doubles how far a link has looked."""
    link = np.append(parent, -1)  # the last row stands for none
    stop = np.append(wanted, True)
    while True:
        further = np.where(stop[link], link, link[link])
        if np.array_equal(further, link):
            return link[:-1]
        link = further
