"""What the own time of Python functions was spent in, by samples: native code that they called, and their own instructions."""

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.analyze.samples.weights import named
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.sampled import NATIVE

ITSELF = -1  # of native_id
_SAYS_NOTHING = r"\+0x|_StackRef|^_?PyObject_(?:Vectorcall|Call|MakeTpCall)"  # no name, or the interpreter's own way to call C, not what it calls
_KEYS = ["func_id", "native_id"]


def below(trace: Trace, period: int, of: int) -> pd.DataFrame:
    """One row per Python function and what it called of native code: func_id, native_id, self_ns, self_error_ns, self_samples; most time first.

    native_id: the first function below it that has a name and is not the interpreter calling another, else the first; ITSELF where there is
    none. Errors as errors.with_errors has them, of `of` samples on a core.
    """
    functions = trace.functions()
    native = functions.loc[functions["function_layer"] == NATIVE]
    says = ~native["qualname"].str.contains(_SAYS_NOTHING)
    names = dict(zip(native["func_id"].tolist(), says.tolist(), strict=True))  # func_id of native functions -> whether its name says something
    columns, sums = named("self", "self_"), []
    for samples, stacks in segments(trace):
        place = _placed(stacks, names)
        known = samples[samples["stack_id"].isin(place.index)]
        rows = place.loc[known["stack_id"]].set_index(known.index)
        sums.append(pd.concat([rows, known[_sums(columns)].set_axis(columns, axis=1)], axis=1).groupby(_KEYS).sum().reset_index())
    table = pd.concat(sums or [pd.DataFrame({name: np.zeros(0, np.int64) for name in (*_KEYS, *columns)})]).groupby(_KEYS)[columns].sum()
    table = with_errors(table.reset_index(), period, of)
    return table[[*_KEYS, "self_ns", "self_error_ns", "self_samples"]].sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


def _sums(columns: list[str]) -> list[str]:
    """The columns of segments() that they are sums of."""
    return [named("total", "")[at].replace("total_samples", "samples") for at in range(len(columns))]


def _placed(stacks: pd.DataFrame, names: dict[int, bool]) -> pd.DataFrame:
    """_KEYS by stack_id."""
    of: dict[int, tuple[int, int]] = {}
    for stack, parent, func_id in zip(*(stacks[name].tolist() for name in ("stack_id", "parent_id", "func_id")), strict=True):
        if func_id not in names:
            of[stack] = func_id, ITSELF
            continue
        python, first = of.get(parent, (-1, ITSELF))
        of[stack] = python, func_id if first == ITSELF or (names[func_id] and not names[first]) else first
    return pd.DataFrame.from_dict(of, orient="index", columns=_KEYS)
