"""Run under PyTorch's own Python: what workloads call in two steps, their models' sizes, what torch.fx makes of them; JSON.

Each word asks one thing, `calls`, `traced` or `parameters`, with the command line of one workload after a colon.
"""

import argparse
import contextlib
import cProfile
import importlib
import io
import json
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

WORKLOADS = Path(__file__).parents[2] / "scripts" / "workloads"
SMALL = ["--batches", "2", "--batch-size", "2", "--threads", "1"]


def calls(workload: ModuleType, args: argparse.Namespace, options: list[str]) -> dict[str, int]:
    """How often each function of training.py is called in a run."""
    profile = cProfile.Profile()
    with contextlib.redirect_stdout(io.StringIO()):
        profile.runcall(workload.main, options)
    entries = [entry for entry in profile.getstats() if isinstance(entry.code, CodeType)]
    shared = str(WORKLOADS / "training.py")
    return {entry.code.co_name: entry.callcount for entry in entries if entry.code.co_filename == shared}


def traced(workload: ModuleType, args: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """The modules that torch.fx calls, those that there are, and whether its graph computes the same."""
    model = workload.build(args).eval()
    inputs, _ = workload.training.load_batch(workload.make_data(args), torch.arange(2))
    graph = torch.fx.symbolic_trace(model)
    return {
        "called": sorted({node.target for node in graph.graph.nodes if node.op == "call_module"}),
        "modules": sorted(name for name, module in model.named_modules() if not list(module.children())),
        "same": torch.equal(graph(inputs), model(inputs)),
    }


def parameters(workload: ModuleType, args: argparse.Namespace, options: list[str]) -> int:
    """How many numbers the model learns."""
    return sum(each.numel() for each in workload.build(args).parameters())


def answer(question: str) -> Any:
    """What one word asks."""
    what, _, line = question.partition(":")
    name, *options = line.split()
    workload = importlib.import_module(name)
    options = [*SMALL, *options]
    ask = {"calls": calls, "traced": traced, "parameters": parameters}[what]
    return ask(workload, workload.options().parse_args(options), options)


if __name__ == "__main__":
    sys.path.insert(0, str(WORKLOADS))
    print(json.dumps([answer(question) for question in sys.argv[1:]]))
