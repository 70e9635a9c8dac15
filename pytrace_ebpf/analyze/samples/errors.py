"""The statistical error of sampled times."""

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]


def standard_error(samples: npt.ArrayLike, of: int) -> Floats:
    """The standard error of a count of samples out of `of`, in samples.

    That of a binomial distribution, its share estimated after Agresti and Coull (1998): so 0 and `of` samples have an error as well.
    """
    share = (np.asarray(samples, np.float64) + 2) / (of + 4)
    return np.sqrt(of * share * (1 - share))


def with_errors(table: pd.DataFrame, period: int, of: int) -> pd.DataFrame:
    """`table` with a column X_samples and X_error_ns, one standard error, behind X_ns for X in total and self; `of`: all samples of the trace."""
    out = table.copy(deep=False)
    for name in ("total", "self"):
        if f"{name}_ns" in table:
            samples = table[f"{name}_ns"].to_numpy(np.int64) // period
            out[f"{name}_samples"] = samples
            out[f"{name}_error_ns"] = np.rint(standard_error(samples, of) * period).astype(np.int64)
    return out
