"""Quantiles by nearest rank: each is a value that there was."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def nearest_ranks(values: npt.NDArray[np.int64], shares: Iterable[float]) -> list[int]:
    """Of `values`, in any order and at least one, those below or at which these shares (above 0, up to 1) of them are."""
    ordered = np.sort(values)
    return [int(ordered[int(np.ceil(share * len(ordered))) - 1]) for share in shares]
