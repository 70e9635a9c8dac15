"""What the workloads share: their options, and a training loop whose phases are functions that a tracer sees by name.

A step of every workload is `load_batch`, the modules' own `forward`, `backward` and `step`. A workload gives
`options()`, its command line; `build(args)`, its model; `make_data(args)`, its data; and `main(argv)`, a whole run.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Data = tuple[torch.Tensor, torch.Tensor]  # inputs and targets, one row a sample


def parser(name: str, description: str | None, *, batch_size: int, batches: int, learning_rate: float) -> argparse.ArgumentParser:
    """The options that every workload has, with its own defaults; `workload` is its name."""
    options = argparse.ArgumentParser(f"{name}.py", description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.set_defaults(workload=name)
    options.add_argument("--epochs", type=positive, default=1, help="how often all samples are seen")
    options.add_argument("--batches", type=positive, default=batches, help="batches in an epoch")
    options.add_argument("--batch-size", type=positive, default=batch_size, help="samples in a batch")
    options.add_argument("--learning-rate", type=float, default=learning_rate, help="Adam's")
    options.add_argument("--seed", type=int, default=1, help="of data, weights and order")
    options.add_argument("--threads", type=positive, help="torch.set_num_threads; PyTorch's own number if not given")
    options.add_argument("--no-mkldnn", action="store_true", help="turn oneDNN off")
    options.add_argument("--wait", action="store_true", help="say `ready` and wait for a line on stdin before training")
    return options


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def samples(args: argparse.Namespace) -> int:
    """How many samples there are."""
    return int(args.batches * args.batch_size)


def set_up(args: argparse.Namespace) -> None:
    """Make the run repeatable and set what the options say about threads and libraries."""
    torch.manual_seed(args.seed)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.no_mkldnn:
        torch.backends.mkldnn.enabled = False


def load_batch(data: Data, indices: torch.Tensor) -> Data:
    """The phase of the data: the samples of these indices; images of bytes become fractions of one."""
    inputs, targets = data[0][indices], data[1][indices]
    return (inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs), targets


def backward(loss: torch.Tensor) -> None:
    """The phase of the gradients."""
    loss.backward()


def step(optimizer: torch.optim.Optimizer) -> None:
    """The phase of the optimizer."""
    optimizer.step()
    optimizer.zero_grad()


def adam(args: argparse.Namespace, model: nn.Module, **settings: Any) -> torch.optim.Adam:
    """An optimizer for this model."""
    return torch.optim.Adam(model.parameters(), lr=args.learning_rate, **settings)


def supervised(args: argparse.Namespace, model: nn.Module, criterion: nn.Module) -> Callable[..., float]:
    """`train_batch(inputs, targets)` for one model with one loss; returns that."""
    optimizer = adam(args, model)

    def train_batch(inputs: torch.Tensor, targets: torch.Tensor) -> float:
        loss = criterion(model(inputs), targets)
        backward(loss)
        step(optimizer)
        return float(loss.item())

    return train_batch


def train_epoch(args: argparse.Namespace, data: Data, train_batch: Callable[..., float]) -> list[float]:
    """The loss of every batch of all samples in a new order."""
    order = torch.randperm(len(data[0])).split(args.batch_size)
    return [train_batch(*load_batch(data, indices)) for indices in order]


def train(args: argparse.Namespace, data: Data, train_batch: Callable[..., float]) -> dict[str, Any]:
    """Train as the options say; the results: losses (first and last tenth of the batches), seconds an epoch."""
    losses, seconds = [], []
    if args.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    for _ in range(args.epochs):
        start = time.perf_counter()
        losses += train_epoch(args, data, train_batch)
        seconds.append(round(time.perf_counter() - start, 3))
    tenth = -(-len(losses) // 10)
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    return {"first_loss": first, "last_loss": last, "steps": len(losses), "epoch_s": seconds}


def say(args: argparse.Namespace, model: nn.Module, figures: dict[str, Any]) -> None:
    """The last line of the output: what was done, as JSON."""
    about = {
        "workload": args.workload,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "samples": samples(args),
        "threads": torch.get_num_threads(),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps({**about, **figures}), flush=True)


def run(
    options: argparse.ArgumentParser,
    build: Callable[[argparse.Namespace], nn.Module],
    make_data: Callable[[argparse.Namespace], Data],
    criterion: nn.Module,
    argv: Sequence[str] | None,
) -> None:
    """A whole run of a workload with one model and one loss."""
    args = options.parse_args(argv)
    set_up(args)
    model, data = build(args), make_data(args)
    say(args, model, train(args, data, supervised(args, model, criterion)))
