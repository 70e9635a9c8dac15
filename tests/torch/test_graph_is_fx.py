"""The graph of a recorded forward pass is, node by node, that which torch.fx makes of the same model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.native.torch_graph import Graph, forwards, graph
from tests.bpf.conftest import lost

NETWORKS = {"kim_cnn": "KimCNN", "image_cnn": "ImageCNN", "resnet": "ResNet", "mobilenet": "MobileNet"}
pytestmark = pytest.mark.bpf


def leaves(found: Graph) -> list[list[str | None]]:
    """As fx_nodes.py: [class of the leaf module or None, operator or None] in order."""
    nodes = found.nodes
    modules = nodes[nodes["kind"] == "module"].set_index("call_id")
    leaf = modules[~modules.index.isin(modules["parent_id"])]["name"]
    operators = nodes[nodes["kind"] == "operator"]
    silent = leaf[~leaf.index.isin(operators["parent_id"])]
    rows = [
        (call_id, [leaf.get(parent), name])
        for call_id, parent, name in zip(operators["call_id"], operators["parent_id"], operators["name"], strict=True)
    ]
    rows += [(call_id, [name, None]) for call_id, name in silent.items()]
    return [row for _, row in sorted(rows)]


def test_node_by_node(torch_python: Path, tmp_path: Path) -> None:
    program = [str(torch_python), str(Path(__file__).with_name("fx_nodes.py")), *NETWORKS]
    # The usual ones leave out squeeze and other views.
    command = [sys.executable, "-m", "pytrace_ebpf", "run", "--operators", "all", "-o", str(tmp_path / "trace"), "--", *program]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
    expected = json.loads(said.splitlines()[-1])
    trace = pytrace_ebpf.open(tmp_path / "trace")
    passes = forwards(trace)
    assert not lost(trace)
    for (name, nodes), call_id in zip(zip(NETWORKS, expected, strict=True), passes["call_id"], strict=False):
        assert leaves(graph(trace, int(call_id))) == nodes, name
        assert len(nodes) >= 6, name
