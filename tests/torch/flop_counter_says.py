"""Run by PyTorch's own Python: what torch.utils.flop_counter counts; JSON.

Without words each operator of some training steps, with its tensors; of a workload (its name and options) each operator's total.
"""

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

torch.manual_seed(1)
torch.set_num_threads(1)
ROWS: list[dict[str, Any]] = []


def sizes(values: Any) -> list[list[int] | None]:
    return [list(v.shape) if isinstance(v, Tensor) else None for v in values]


def types(values: Any) -> list[str | None]:
    return [str(v.dtype)[6:] if isinstance(v, Tensor) else None for v in values]


def row(name: str, given: list[Any], returned: Any, flops: int | None, groups: int = 1) -> None:
    out = returned if isinstance(returned, (tuple, list)) else [returned]
    ROWS.append({"name": name, "given": sizes(given), "dtypes": types(given), "returned": sizes(out), "flops": flops, "groups": groups})


class Watch(TorchDispatchMode):
    """Every operator that reaches the kernels, with what flop_counter's own formula says of it."""

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        named = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | (kwargs or {})
        given: list[Any] = []
        for argument in func._schema.arguments:
            if "Tensor" in str(argument.type):
                value = named.get(argument.name)
                given += value if isinstance(value, (list, tuple)) else [value]
        formula = flop_registry.get(func.overloadpacket)
        flops = formula(*args, **(kwargs or {}), out_val=out) if formula else None
        row(str(func.overloadpacket).replace(".", "::"), given, out, flops, named.get("groups", 1))
        return out


def whole(name: str, call: Callable[..., Tensor], *given: Any, **more: Any) -> None:
    """A composite operator: what flop_counter counts of all that it consists of."""
    with FlopCounterMode(display=False) as counter:
        out = call(*given, **more)
    row(f"aten::{name}", [v for v in tree_leaves(given) if isinstance(v, Tensor)], out, counter.get_total_flops())


def networks() -> Iterator[tuple[nn.Module, Tensor]]:
    conv = nn.Conv2d
    yield nn.Sequential(nn.Conv1d(30, 8, 2), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(8, 5)), torch.randn(4, 30, 20)
    yield (
        nn.Sequential(conv(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), conv(8, 8, 3, groups=8), conv(8, 12, 1, groups=2)),
        torch.randn(4, 3, 16, 16),
    )
    yield nn.Sequential(conv(6, 6, 3, padding=1), conv(6, 6, 5, dilation=2), nn.Conv2d(6, 4, 3, padding="same")), torch.randn(2, 6, 20, 20)
    yield nn.Sequential(nn.ConvTranspose2d(16, 8, 4), nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ConvTranspose2d(8, 1, 4, 2, 1)), torch.randn(4, 16, 1, 1)
    yield nn.Conv3d(3, 4, 2), torch.randn(2, 3, 5, 6, 7)
    yield nn.Linear(12, 5, bias=False), torch.randn(3, 7, 12)
    yield nn.GRU(16, 12), torch.randn(7, 4, 16)
    yield nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(3, 7, 16)


def operators() -> list[dict[str, Any]]:
    for network, x in networks():
        with Watch():
            out = network(x.requires_grad_())
            (out[0] if isinstance(out, tuple) else out).sum().backward()

    r = torch.randn
    whole("conv1d", functional.conv1d, r(4, 6, 10), r(8, 6, 3), r(8))
    whole("conv1d", functional.conv1d, r(6, 10), r(8, 6, 3))
    whole("conv2d", functional.conv2d, r(4, 6, 10, 10), r(8, 3, 3, 3), groups=2)
    whole("conv2d", functional.conv2d, r(4, 6, 10, 10), r(8, 6, 3, 3), padding="same")
    whole("conv3d", functional.conv3d, r(2, 3, 5, 6, 7), r(4, 3, 2, 2, 2), stride=2)
    whole("conv_transpose2d", functional.conv_transpose2d, r(4, 6, 5, 5), r(6, 3, 4, 4), stride=2, groups=2)
    whole("linear", functional.linear, r(4, 6), r(8, 6), r(8))
    whole("linear", functional.linear, r(3, 4, 6), r(8, 6), r(8))
    whole("linear", functional.linear, r(3, 4, 6), r(8, 6))
    whole("linear", functional.linear, r(6), r(8, 6))
    whole("matmul", torch.matmul, r(2, 1, 4, 6), r(3, 6, 5))
    whole("matmul", torch.matmul, r(4, 6), r(6, 5))
    with sdpa_kernel(SDPBackend.MATH):  # of the kernel for the CPU it counts nothing
        whole("scaled_dot_product_attention", functional.scaled_dot_product_attention, r(2, 3, 5, 8), r(2, 3, 6, 8), r(2, 3, 6, 8))
    return ROWS


def workload(name: str, *options: str) -> dict[str, int]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "workloads"))
    with FlopCounterMode(display=False) as counter, contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module(name).main(options)
    return {str(operator).replace(".", "::"): flops for operator, flops in counter.get_flop_counts()["Global"].items()}


print(json.dumps(workload(*sys.argv[1:]) if sys.argv[1:] else operators()))
