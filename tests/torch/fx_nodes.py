"""Run by PyTorch's own Python: a forward pass of each network named, and then what torch.fx says is in it; JSON.

Of a network a list of [class of the leaf module or null, operator or null], in order: a call of a leaf module by what its forward
calls first of all, a call of a function or method by the operator it is.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "workloads"))

import torch
from torch import fx, nn

# What a leaf module calls is its functional's name, except:
OPERATORS = {"Embedding": "embedding", "Identity": None, "Dropout": "dropout"}
PREFIXES = {"Conv": "conv", "MaxPool": "max_pool", "AdaptiveAvgPool": "adaptive_avg_pool"}


def defining(module: nn.Module) -> str:
    """The class that its forward is defined in: ReLU6's is Hardtanh."""
    return type(module).forward.__qualname__.removesuffix(".forward")


def of_module(module: nn.Module) -> list[str | None]:
    """The outermost operators of a call of a leaf module that is being trained."""
    name = defining(module)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return ["aten::add_", "aten::batch_norm"]  # it counts its batches
    for prefix, operator in PREFIXES.items():
        if name.startswith(prefix):
            return [f"aten::{operator}{name.removeprefix(prefix)}"]
    operator = OPERATORS.get(name, name.lower() + ("_" if getattr(module, "inplace", False) else ""))
    return [operator and f"aten::{operator}"]


def of_node(node: fx.Node, model: nn.Module) -> list[list[str | None]]:
    """The rows of a node of a graph."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return [[defining(module), operator] for operator in of_module(module)]
    if node.op in ("call_function", "call_method"):
        name = node.target if isinstance(node.target, str) else node.target.__name__  # type: ignore[union-attr]
        return [[None, f"aten::{name}"]]
    return []


def main() -> None:
    models: list[Any] = []
    for name in sys.argv[1:]:
        workload = importlib.import_module(name)
        training = importlib.import_module("training")
        args = workload.options().parse_args(["--batches", "1", "--batch-size", "2", "--threads", "1"])
        training.set_up(args)
        model, (inputs, _) = workload.build(args), training.load_batch(workload.make_data(args), torch.arange(2))
        models.append(model)
        model(inputs)
    print(json.dumps([[row for node in fx.symbolic_trace(m).graph.nodes for row in of_node(node, m)] for m in models]))


if __name__ == "__main__":
    main()
