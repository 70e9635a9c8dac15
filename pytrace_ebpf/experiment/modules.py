"""Which nn.Module of PyTorch each call path of an experiment lies in."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions.named_layers import enclosing
from pytrace_ebpf.analyze.native.torch_graph import CALLERS, FILE

COLUMNS = ("path_id", "parent_path_id", "qualname", "file")


def in_modules(paths: pd.DataFrame) -> pd.DataFrame:
    """The `paths` that are in the forward of an nn.Module, each with the innermost one as its `module`, in the same order.

    In: COLUMNS and calls, as of by_path, callers before callees. Out: module (str): the classes of the modules around, the
    outermost first, joined by dots ("KimCNN.Conv1d"; a class is the one that defines the forward, BatchNorm2d's _BatchNorm);
    calls: 0 but where the path ends in that module's own forward, so that they add up to the module's.
    """
    parent, own = _parents(paths), forwards(paths)
    row = np.arange(len(paths))
    outer = enclosing(parent, own)
    inner = np.where(own, row, outer)
    names = np.full(len(paths) + 1, "", object)  # the last one for none
    for at, qualname in zip(row[own], paths["qualname"].to_numpy(object)[own], strict=True):
        above = names[outer[at]]
        names[at] = f"{above}{'.' if above else ''}{qualname.removesuffix('.forward')}"
    out = paths.assign(module=names[inner], calls=paths["calls"].where(own, 0))
    return out[inner >= 0]


def forwards(paths: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mask of the paths that end in an nn.Module's forward, called as such: by Module._call_impl. In: COLUMNS."""
    parent, last = _parents(paths), paths["qualname"].astype(object).str.rsplit(".", n=1).str[-1]
    calling = paths["file"].astype(object).str.endswith(FILE) & last.isin(CALLERS)
    return (last == "forward").to_numpy(bool) & np.append(calling.to_numpy(bool), False)[parent]


def _parents(paths: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Per path the row of the one above it, -1 for none."""
    return pd.Index(paths["path_id"]).get_indexer(paths["parent_path_id"]).astype(np.int64)
