"""The functions whose calls are a phase of a training's step: those of PyTorch and of what is built on it."""

from typing import NamedTuple

import pandas as pd

from pytrace_ebpf.derive.calls.entry_points import matching
from pytrace_ebpf.trace.steps import PHASES

DATA, FORWARD, LOSS, BACKWARD, COMMUNICATION, OPTIMIZER, OTHER = range(len(PHASES))
COMMUNICATES = ("pt_gloo", "gloo", "pt_nccl", "nccl")  # how the names of threads begin that do so for the others


class _Point(NamedTuple):
    """Functions, by shell patterns of module and qualified name; `ends`: where one returns the weights have made their step."""

    phase: int
    module: str
    qualname: str
    ends: bool = False


_C10D = "torch.distributed.distributed_c10d"
_COLLECTIVES = (
    "all_reduce*",
    "all_gather*",
    "all_to_all*",
    "reduce*",
    "broadcast*",
    "*barrier",
    "scatter*",
    "gather*",
    "send*",
    "recv*",
    "batch_isend_irecv",
)
# Of a function that several fit the first one counts.
_POINTS = (
    _Point(DATA, "torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__"),
    _Point(OPTIMIZER, "torch.optim.lr_scheduler", "*.step"),
    _Point(OPTIMIZER, "torch.optim.swa_utils", "*"),
    _Point(OPTIMIZER, "torch.optim.optimizer", "*profile_hook_step.<locals>.wrapper", True),  # of each optimizer's `step`, whoever wrote that
    _Point(OPTIMIZER, "torch.optim.*", "*.step", True),
    _Point(OPTIMIZER, "torch.*.grad_scaler", "GradScaler.step", True),
    _Point(OPTIMIZER, "torch.*.grad_scaler", "GradScaler.u*"),  # update, unscale_
    _Point(OPTIMIZER, "deepspeed.runtime.engine", "DeepSpeedEngine.step", True),
    _Point(OPTIMIZER, "torch.optim.optimizer", "Optimizer.zero_grad"),
    _Point(OPTIMIZER, "torch.nn.utils.clip_grad", "clip_grad_*"),
    _Point(BACKWARD, "torch._tensor", "Tensor.backward"),
    _Point(BACKWARD, "torch.autograd", "backward"),
    _Point(BACKWARD, "torch.autograd", "grad"),
    _Point(BACKWARD, "deepspeed.runtime.engine", "DeepSpeedEngine.backward"),
    _Point(LOSS, "torch.nn.modules.loss", "*.forward"),
    _Point(LOSS, "torch.nn.functional", "*_loss"),
    _Point(LOSS, "torch.nn.functional", "*cross_entropy*"),
    _Point(LOSS, "torch.nn.functional", "kl_div"),
    _Point(LOSS, "transformers.loss.*", "*Loss"),
    *(_Point(COMMUNICATION, _C10D, name) for name in _COLLECTIVES),
    _Point(COMMUNICATION, "horovod.torch.mpi_ops", "synchronize"),
    _Point(FORWARD, "torch.nn.modules.module", "Module._wrapped_call_impl"),
    _Point(FORWARD, "torch.nn.modules.module", "Module._call_impl"),
    _Point(FORWARD, "torch.nn.modules.module", "Module.__call__"),
)


def phases(functions: pd.DataFrame) -> pd.DataFrame:
    """`phase`, its place in PHASES, and `ends`, of each of `functions` (schema.FUNCTIONS) that is a phase's, by func_id."""
    library = functions[functions["module"].str.startswith(("torch.", "deepspeed.", "horovod.", "transformers."), na=False)]
    columns = {"phase": "int64", "ends": "bool"}
    found = [
        pd.DataFrame({"phase": point.phase, "ends": point.ends}, matching(library, f"{point.module}:{point.qualname}")).astype(columns)
        for point in (_POINTS if len(library) else ())
    ]
    joined = pd.concat(found) if found else pd.DataFrame(columns=list(columns)).astype(columns)
    return joined[~joined.index.duplicated()]
