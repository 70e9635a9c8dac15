"""What tracing costs per call, measured on this machine: the target's own interpreter runs fib with and without it.

By the CPU time of the thread that calls, and the least of many rounds: time by the clock would be, beside busy processes, mostly the wait for a core.
"""

import math
import os
import select
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.rights import unprivileged

_CHILD = Path(__file__).with_name("fib_child.py")
_PATIENCE_S, _CPU_S = 10, 20  # for one measurement, and for all of them
_MOST_NS = 1e7  # a call that seems to take longer was not measured
_LONGEST = 64  # characters of an answer


class FibChild:
    """A second process of the executable that `target` runs, with the target's rights and no others; it runs fib on request.

    Raises TargetError where that cannot be; see lowered.start().
    """

    def __init__(self, target: Target, environment: Mapping[str, str] | None = None) -> None:
        words = [target.process.executable_name, "-I", "-S", "-c", _CHILD.read_text()]
        try:
            self._child = unprivileged.start(target.process, words, environment or {}, _CPU_S)
        except OSError as error:
            raise TargetError(f"{target.executable} cannot be started ({error.strerror})") from error
        self.pid = self._child.pid

    def ns_per_call(self) -> float:
        """One measurement, in CPU time: the least of its rounds. Raises TargetError where it has none to give in time."""
        return self._ask(b"fib\n")

    def ns_per_turn(self) -> float:
        """The same, of a loop of attributes, items, comparisons and sums, without calls."""
        return self._ask(b"code\n")

    def _ask(self, what: bytes) -> float:
        try:
            if self._child.stdin is None or self._child.stdout is None:
                raise ValueError
            self._child.stdin.write(what)
            self._child.stdin.flush()
            poll = select.poll()  # of any number, which select() is not
            poll.register(self._child.stdout, select.POLLIN)
            if not poll.poll(1000 * _PATIENCE_S):
                raise ValueError
            measured = float(os.read(self._child.stdout.fileno(), _LONGEST))
        except (OSError, ValueError):
            measured = math.nan
        if not 0 < measured < _MOST_NS:
            raise TargetError("the interpreter that was to measure the cost has no answer")
        return measured

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._child.kill()
        with suppress(OSError, subprocess.TimeoutExpired):
            self._child.communicate(timeout=1)
