"""The statistical error of sampled times."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.states import SPLIT

Floats = npt.NDArray[np.float64]
_OFF = SPLIT[1:]


def standard_error(samples: npt.ArrayLike, of: int) -> Floats:
    """The standard error of a count of samples out of `of`, in samples.

    That of a binomial distribution, its share estimated after Agresti and Coull (1998): so 0 and `of` samples have an error as well.
    """
    share = (np.asarray(samples, np.float64) + 2) / (of + 4)
    return np.sqrt(of * share * (1 - share))


def with_errors(table: pd.DataFrame, period: int, of: int) -> pd.DataFrame:
    """`table` with X_error_ns, one standard error, for each X_ns that it has of a total, a self time and their states.

    `of`: how many samples on a core there are. What comes from samples off the core is taken from X_square (weights.SQUARES), where `table` has
    it, instead of which the errors stand then.
    """
    out = table.copy(deep=False)
    for whole, prefix in (("total", ""), ("self", "self_")):
        if f"{whole}_ns" not in table:
            continue
        on_cpu = table.get(f"{prefix}on_cpu_ns", table[f"{whole}_ns"])
        chance = (standard_error(on_cpu.to_numpy(np.int64) // period, of) * period) ** 2
        for name, square in ((f"{whole}_ns", chance), (f"{prefix}on_cpu_ns", chance), *((f"{prefix}{name}", 0 * chance) for name in _OFF)):
            if name in table:
                own = out.pop(name.replace("_ns", "_square")) if name.replace("_ns", "_square") in out else 0.0
                out[name.replace("_ns", "_error_ns")] = np.rint(np.sqrt(square + own)).astype(np.int64)
    return out
