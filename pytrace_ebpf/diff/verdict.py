"""Whether repeated runs of two sides differ by more than chance, however many functions, or tests, are compared.

By relabelling: were both sides the same program, any of their runs could as well have been one of the other side's. So what was found is compared with what each
other division of all runs into two sides gives, and of all that is compared the greatest counts there: of comparisons of one and the same program at
most RATE name anything at all (which is more than that so many of the names were false: Westfall and Young, Resampling-Based Multiple Testing, 1993). That
asks nothing of how times are distributed, nor that functions vary independently, which on one machine they do not; but that the sides took turns.
"""

from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

RATE = 0.05
"""Of comparisons in which nothing differs at most so many say that something does."""
LEAST_RUNS = 3
"""Of each side: 3 and 3 can be divided in 20 ways, of which one is RATE."""

_MOST = 5_000  # divisions that are tried: of more of them, so many by chance
_SAME = 1e-9  # relative: what differs by less is equal, as sums of floats go

Times = npt.NDArray[np.float64]  # a row a run, a column for each thing compared


def slower(before: Times, after: Times, least: Times) -> Times:
    """For each thing how often, at most, a difference like that of the means comes by chance in any of them. `least`: the difference that matters, of each."""
    runs = np.vstack([before, after])
    found = _apart(runs, _divisions(len(before), len(after)), least)
    greatest = found.max(axis=1, initial=-np.inf)
    return (greatest[:, None] >= found[0] - _SAME * np.abs(found[0])).mean(axis=0)


def not_slower(before: Times, after: Times, least: Times) -> float:
    """How often, at most, runs like these come by chance where any one of the things takes longer by `least`: small where that can be ruled out for all."""
    runs = np.vstack([-(before + least), -after])
    found = _apart(runs, _divisions(len(before), len(after)), least)
    return float((found >= found[0] - _SAME * np.abs(found[0])).mean(axis=0).max(initial=0.0))


def looks(runs: int) -> list[int]:
    """After how many runs of each side to look, where at most `runs` are made: each look spends a part of RATE, so there are few, and none that could find nothing."""
    at = [runs]
    while at[0] > 4 and 1 / comb(2 * _earlier(at[0]), _earlier(at[0])) <= RATE / (len(at) + 1):
        at.insert(0, _earlier(at[0]))
    return at


def _earlier(runs: int) -> int:
    return runs * 7 // 10


def _divisions(before: int, after: int) -> npt.NDArray[np.bool_]:
    """Which runs are the second side's, a row for each division of all into two sides; the first row is the real one."""
    count = before + after
    real = np.arange(count) >= before
    if comb(count, after) <= _MOST:
        chosen = np.array(list(combinations(range(count), after)))
        rows = np.zeros((len(chosen), count), bool)
        rows[np.arange(len(chosen))[:, None], chosen] = True
        return np.vstack([real, rows[(rows != real).any(axis=1)]])
    random = np.random.default_rng(1)  # the same answer each time
    return np.vstack([real, random.permuted(np.tile(real, (_MOST - 1, 1)), axis=1)])


def _apart(runs: Times, divisions: npt.NDArray[np.bool_], least: Times) -> Times:
    """By division and thing how far the second side is above the first: in standard errors and `least` together, so that what hardly varies is not all that counts."""
    centred = runs - runs.mean(axis=0)  # squares of small numbers
    means, errors = [], np.zeros((len(divisions), runs.shape[1]))
    for side in (divisions, ~divisions):
        count = int(side[0].sum())
        mean, square = side @ centred / count, side @ centred**2 / count
        errors += np.maximum(square - mean**2, 0) / max(count - 1, 1)
        means.append(mean)
    spread = np.sqrt(errors) + least
    return np.divide(means[0] - means[1], spread, out=np.zeros_like(spread), where=spread > 0)
