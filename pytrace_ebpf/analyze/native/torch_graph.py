"""One forward pass of a PyTorch model as a graph: which module called which, and the operators that each called, in order.

A call of an nn.Module goes through Module._call_impl, which calls its forward. Each forward is a node, named after the class that
defines it (for BatchNorm2d that is _BatchNorm). The attribute under which a parent holds a module is in no frame, so it is not known.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.sinks.operators import enclosing
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.reader import Trace

FILE = "torch/nn/modules/module.py"
CALLERS = ("_call_impl", "_slow_forward", "inner")  # functions of FILE that call a subclass's forward
_CALLS = ("call_id", "parent_id", "last_descendant_id", "layer", "pid", "tid", "func_id", "start_ns", "end_ns", "wall_ns")
_OF_OPERATORS = ("call_id", "overload", "shapes", "dtypes", "result_shapes", "result_dtypes", "flops", "bytes")
NODES = ("call_id", "parent_id", "depth", "kind", "name", "path", "start_ns", "wall_ns", *_OF_OPERATORS[1:])


@dataclass(frozen=True)
class Graph:
    """nodes: one row each (NODES) in the order of their start, so the outermost module comes first. parent_id is another node's call_id, or -1.

    kind: "module", whose name is its class, or "operator", where only outermost operators count. path: the names from the outermost
    module down, joined by "/"; the second child of one name gets #2. The other columns are those of schema.OPERATORS.
    edges: source and target (call_ids) and kind: "contains", from a module to what it called; "next", between two successive ones of these.
    """

    nodes: pd.DataFrame
    edges: pd.DataFrame

    def operators(self) -> pd.DataFrame:
        """The nodes that are operators, in order."""
        return self.nodes[self.nodes["kind"] == "operator"].reset_index(drop=True)


def forwards(trace: Trace) -> pd.DataFrame:
    """The forward passes of a trace: calls of modules made by no other module, in order; call_id, pid, tid, name, start_ns, wall_ns."""
    calls = trace.calls(columns=list(_CALLS))
    functions = trace.functions()
    modules = _modules(calls, functions)
    ids = calls["call_id"].to_numpy(np.int64)[modules]
    outer = calls[modules][enclosing(calls, ids, modules) < 0].assign(name=lambda own: _names(own, functions))
    return outer[["call_id", "pid", "tid", "name", "start_ns", "wall_ns"]].reset_index(drop=True)


def graph(trace: Trace, call_id: int) -> Graph:
    """The graph of the forward pass `call_id` (see forwards). Raises UsageError where that call is no module's forward."""
    root = trace.calls(columns=list(_CALLS), ids=(call_id, call_id))
    if not len(root):
        raise UsageError(f"there is no call {call_id} in this trace; torch_graph.forwards() has those of modules.")
    first = root.iloc[0]
    tid, start_ns, end_ns = int(first["tid"]), int(first["start_ns"]), int(first["end_ns"])
    calls = trace.calls(columns=list(_CALLS), ids=(call_id, int(first["last_descendant_id"])), tid=tid, start_ns=start_ns, end_ns=end_ns + 1)
    functions = trace.functions()
    modules = _modules(calls, functions)
    # Its caller was not read, so the check by caller fails for it.
    modules[0] = _is_forward(calls, functions)[0]
    if not modules[0]:
        raise UsageError(f"the call {call_id} is no module's forward; torch_graph.forwards() has those.")
    operators = (calls["layer"] == "operator").to_numpy()
    ids = calls["call_id"].to_numpy(np.int64)
    outermost = np.zeros(len(calls), bool)
    outermost[operators] = enclosing(calls, ids[operators], operators) < 0
    nodes = calls[modules | outermost].reset_index(drop=True)
    nodes["parent_id"] = enclosing(calls, nodes["call_id"].to_numpy(np.int64), modules)
    nodes["kind"] = np.where(nodes["layer"] == "operator", "operator", "module")
    nodes["name"] = _names(nodes, functions)
    nodes["path"], nodes["depth"] = _paths(nodes)
    more = trace.operators(columns=list(_OF_OPERATORS), tid=tid, start_ns=start_ns, end_ns=end_ns + 1)
    return Graph(nodes.merge(more, how="left", on="call_id")[list(NODES)], _edges(nodes))


def _is_forward(calls: pd.DataFrame, functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    named = functions.loc[functions["name"] == "forward", "func_id"]
    return calls["func_id"].isin(named).to_numpy()


def _modules(calls: pd.DataFrame, functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Mask of the forwards called by Module._call_impl; a super().forward() is not one of them."""
    of_file = functions["file"].str.endswith(FILE) & functions["name"].isin(CALLERS)
    callers = calls["call_id"].to_numpy(np.int64)[calls["func_id"].isin(functions.loc[of_file, "func_id"]).to_numpy()]
    return _is_forward(calls, functions) & calls["parent_id"].isin(callers).to_numpy()


def _names(calls: pd.DataFrame, functions: pd.DataFrame) -> npt.NDArray[np.object_]:
    """For a forward its class, for an operator its name."""
    of = functions.set_index("func_id").loc[calls["func_id"]]
    is_python = (of["function_layer"] == "python").to_numpy()
    return np.where(is_python, of["qualname"].str.removesuffix(".forward"), of["name"])


def _paths(nodes: pd.DataFrame) -> tuple[list[str], list[int]]:
    """The path and depth of each node; in `nodes` a parent precedes its children."""
    number = nodes.groupby(["parent_id", "name"]).cumcount() + 1
    found: dict[int, tuple[str, int]] = {}
    for call_id, parent_id, name, nth in zip(nodes["call_id"], nodes["parent_id"], nodes["name"], number, strict=True):
        label = name if nth == 1 else f"{name}#{nth}"
        above, depth = found.get(parent_id, ("", -1))
        found[call_id] = (f"{above}/{label}" if above else label, depth + 1)
    return [path for path, _ in found.values()], [depth for _, depth in found.values()]


def _edges(nodes: pd.DataFrame) -> pd.DataFrame:
    below = nodes[nodes["parent_id"] >= 0]
    contains = pd.DataFrame({"source": below["parent_id"], "target": below["call_id"], "kind": "contains"})
    before = below.groupby("parent_id")["call_id"].shift(fill_value=-1)
    after: Any = pd.DataFrame({"source": before, "target": below["call_id"], "kind": "next"})[before >= 0]
    return pd.concat([contains, after], ignore_index=True)
