"""The graph of a forward pass from hand-made calls: modules in modules, their operators in order, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.native.torch_graph import FILE, NODES, forwards, graph
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.schema import CallKind
from tests.unit.synthetic import write_trace

MODULE = f"/venv/lib/python3.11/site-packages/{FILE}"
NAMES: list[tuple[str, str, str]] = [
    ("/app/train.py", "main", "main"), (MODULE, "_wrapped_call_impl", "Module._wrapped_call_impl"), (MODULE, "_call_impl", "Module._call_impl"),
    (MODULE, "inner", "Module._call_impl.<locals>.inner"), ("/app/net.py", "forward", "Net.forward"), ("/app/net.py", "forward", "Block.forward"),
    ("/torch/nn/modules/conv.py", "forward", "Conv1d.forward"), ("/torch/nn/modules/conv.py", "_conv_forward", "Conv1d._conv_forward"),
    ("/app/net.py", "forward", "Message.forward"), (MODULE, "__getattr__", "Module.__getattr__"),
]  # fmt: skip
OPERATORS = ("aten::conv1d", "aten::convolution", "aten::relu", "aten::add.Tensor")
FUNCTIONS = [
    *((i, file, name, qualname, 1, "m", 0, "python") for i, (file, name, qualname) in enumerate(NAMES)),
    *((len(NAMES) + i, "", name.partition(".")[0], name, -1, "<operator>", 0, "operator") for i, name in enumerate(OPERATORS)),
]
NUMBER = {qualname: i for i, (_, _, qualname) in enumerate(NAMES)} | {name: len(NAMES) + i for i, name in enumerate(OPERATORS)}
Call = tuple[Any, ...] | str


def module(name: str, *inside: Call, hooked: bool = False) -> Call:
    call: Call = (f"{name}.forward", *inside)
    call = ("Module._call_impl.<locals>.inner", call) if hooked else call
    return ("Module._wrapped_call_impl", ("Module._call_impl", call))


CONV = module("Conv1d", "Module.__getattr__", ("Conv1d._conv_forward", ("aten::conv1d", "aten::convolution")))
NET = module(
    "Net", CONV, "aten::relu", module("Block", CONV, "aten::relu", ("Message.forward", "aten::relu"), hooked=True), "aten::add.Tensor", CONV,
)  # fmt: skip


def trace(path: Path, *calls: Call) -> Any:
    """A thread that makes these calls one after the other, each (name, calls inside...), an event every nanosecond."""
    events: list[tuple[Any, ...]] = []

    def act(call: Call) -> None:
        name, *inside = (call,) if isinstance(call, str) else call
        events.append((len(events), 7, 7, CallKind.ENTRY, NUMBER[name], 0, -1))
        for one in inside:
            act(one)
        events.append((len(events), 7, 7, CallKind.RETURN, NUMBER[name], 0, -1))

    for call in calls:
        act(call)
    return pytrace_ebpf.open(write_trace(path, events=events, functions=FUNCTIONS))


def test_modules_in_modules_and_their_operators_in_order(tmp_path: Path) -> None:
    opened = trace(tmp_path, ("main", NET, NET))
    first, second = forwards(opened)["call_id"].tolist()
    found = graph(opened, second)
    assert list(found.nodes.columns) == list(NODES)
    assert found.nodes["path"].tolist() == [
        "Net",
        "Net/Conv1d", "Net/Conv1d/aten::conv1d",
        "Net/aten::relu",
        "Net/Block", "Net/Block/Conv1d", "Net/Block/Conv1d/aten::conv1d", "Net/Block/aten::relu", "Net/Block/aten::relu#2",
        "Net/aten::add",
        "Net/Conv1d#2", "Net/Conv1d#2/aten::conv1d",
    ]  # fmt: skip
    assert found.nodes["depth"].tolist() == [path.count("/") for path in found.nodes["path"]]
    assert found.operators()["overload"].tolist() == ["", "", "", "", "", "Tensor", ""]
    assert graph(opened, first).nodes["path"].tolist() == found.nodes["path"].tolist()
    assert found.nodes["call_id"].is_monotonic_increasing and found.nodes["call_id"].iloc[0] == second


def test_edges(tmp_path: Path) -> None:
    opened = trace(tmp_path, NET)
    found = graph(opened, int(forwards(opened)["call_id"].iloc[0]))
    path = dict(zip(found.nodes["call_id"], found.nodes["path"], strict=True))
    edges = [(path[e.source], path[e.target], e.kind) for e in found.edges.itertuples()]
    assert [edge for edge in edges if edge[0] == "Net"] == [
        ("Net", child, "contains") for child in ("Net/Conv1d", "Net/aten::relu", "Net/Block", "Net/aten::add", "Net/Conv1d#2")
    ]
    assert [(a, b) for a, b, kind in edges if kind == "next" and a.startswith("Net/Block/")] == [
        ("Net/Block/Conv1d", "Net/Block/aten::relu"), ("Net/Block/aten::relu", "Net/Block/aten::relu#2"),
    ]  # fmt: skip
    contains = [target for _, target, kind in edges if kind == "contains"]
    assert sorted(contains) == sorted(set(path.values()) - {"Net"})


def test_a_part_of_a_pass_is_a_graph_too(tmp_path: Path) -> None:
    opened = trace(tmp_path, NET)
    nodes = graph(opened, int(forwards(opened)["call_id"].iloc[0])).nodes
    block = int(nodes.loc[nodes["path"] == "Net/Block", "call_id"].iloc[0])
    expected = ["Block", "Block/Conv1d", "Block/Conv1d/aten::conv1d", "Block/aten::relu", "Block/aten::relu#2"]
    found = graph(opened, block).nodes
    assert found["path"].tolist() == expected and found["parent_id"].iloc[0] == -1


def test_what_is_no_forward_is_refused(tmp_path: Path) -> None:
    opened = trace(tmp_path, ("main", NET))
    assert forwards(opened)["name"].tolist() == ["Net"]
    with pytest.raises(UsageError, match="no module's forward"):
        graph(opened, int(opened.calls()["call_id"].iloc[0]))
    with pytest.raises(UsageError, match="no call 999"):
        graph(opened, 999)


def test_a_trace_without_modules_has_no_forward_passes(tmp_path: Path) -> None:
    assert len(forwards(trace(tmp_path, "main"))) == 0
    assert len(forwards(trace(tmp_path / "message", ("main", "Message.forward")))) == 0
