"""How much of several intervals together has passed by a moment."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """Time in intervals up to a moment, of all of them together; straight between the moments `when`."""

    when: Ints
    total: Ints  # up to each
    slope: Ints  # intervals that are open from each on

    @classmethod
    def of(cls, start: Ints, end: Ints) -> "Curve":
        """Of the intervals [start, end), at least one."""
        when = np.concatenate((start, end))
        step = np.concatenate((np.ones_like(start), -np.ones_like(end)))
        order = np.argsort(when, kind="stable")
        when, slope = when[order], np.cumsum(step[order])
        total = np.concatenate(([0], np.cumsum(slope[:-1] * np.diff(when))))
        return cls(when, total, slope)

    def at(self, ts: Ints) -> Ints:
        """Nanoseconds up to each of `ts`."""
        place = np.searchsorted(self.when, ts, side="right") - 1
        found: Ints = np.where(place >= 0, self.total[place] + self.slope[place] * (ts - self.when[place]), 0)
        return found
