"""Estimates what probes would cost a running program, from a few tenths of a second, mostly of its CPU time alone."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.source_selection import cpu_baseline, price

MOST_SHARE = 0.1  # share of its time: a program may be slowed so much without the user's consent
_LOOK_S = 0.2
_MOST_OF_A_LOOK = 0.97  # that the probes can take: then they are all that the program does


@dataclass(frozen=True)
class CostEstimate:
    """What was measured of a program, and how much its probes would slow it down."""

    pid: int
    cpu_share: float  # cores that it used
    calls_per_s: float | None  # that it made, where they were counted
    share: float  # seconds of CPU time that the probes would add to one second; uncounted the most, on 3.11 about so many

    @property
    def is_cheap(self) -> bool:
        """Whether the slowdown is small enough to use the probes unasked."""
        return self.share <= MOST_SHARE


def estimate_cost(target: Target, count: Callable[[Target, float], float], ns_per_call: float | None) -> CostEstimate:
    """Look at a running process for some tenths of a second, less what has passed since the note_baseline at it.

    count  calls a second, by the probes, of a process over so many seconds: only asked where CPU time leaves it open, and
           not on 3.11, where counting would slow every opcode too
    ns_per_call  the price of one by the probes, None where it is not known

    Raises TargetError where the process has ended.
    """
    try:
        cpu_share = cpu_baseline.cpu_share(target.process.key, _LOOK_S)
    except OSError as error:
        raise TargetError(f"process {target.pid} ended while it was looked at ({os.strerror(error.errno or 0)})") from None
    share = price.usdt_share(cpu_share, target.python_version, ns_per_call)
    if share <= MOST_SHARE or target.python_version is None or target.python_version[:2] == (3, 11):
        return CostEstimate(target.pid, cpu_share, None, share)
    calls_per_s = count(target, _LOOK_S)
    taken = min(calls_per_s * (ns_per_call or 0) / 1e9, _MOST_OF_A_LOOK)
    # The count was taken with probes, which slow the program: untraced it makes the same calls in less time.
    return CostEstimate(target.pid, cpu_share, calls_per_s / (1 - taken), taken / (1 - taken))
