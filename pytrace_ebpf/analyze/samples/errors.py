"""The statistical error of sampled times."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.trace.states import SPLIT

Floats = npt.NDArray[np.float64]
_OFF = SPLIT[1:]
UNKNOWN = -1  # of func_id


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


def with_unread(table: pd.DataFrame, period: int, whole: Mapping[str, int], unread: Mapping[str, int]) -> pd.DataFrame:
    """`table` of with_errors() with what the samples without a stack add to the errors, as their time may have been anybody's.

    `whole`, `unread`: the time of all samples and of those, by total_ns and the states. How much a row's time is too small by for that is not known: were
    all of them at one place, and at a row's with the probability that is its share q of what is known, the mean square is q times the square of
    their time, which stands for all that lies between none and all of them being the row's. A row of func_id -1 has them already.
    """
    out = table.copy(deep=False)
    others = table["func_id"] != UNKNOWN if "func_id" in table else np.ones(len(table), bool)
    for whole_name, prefix in (("total_ns", ""), ("self_ns", "self_")):
        for name, key in ((whole_name, "total_ns"), *((f"{prefix}{state}", state) for state in SPLIT)):
            error = name.replace("_ns", "_error_ns")
            if error in table and unread.get(key):
                share = (table[name] + 2 * period) / (whole[key] - unread[key] + 4 * period)
                added = np.where(others, np.minimum(share, 1.0) * float(unread[key]) ** 2, 0.0)
                out[error] = np.rint(np.sqrt(table[error].astype(np.float64) ** 2 + added)).astype(np.int64)
    return out
