"""Calls agents from outside: they have no thread of their own, so where no Python runs nobody there would see what is asked."""

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent.agent_library import agent_library
from pytrace_ebpf.record.agent.traced import Traced
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import Target

_SOON_S = 0.005  # so long a thread that runs Python is given to see it by itself
_AGAIN_S = 0.3
_QUIET_S, _MOST_QUIET_S = 0.5, 60.0
_WATCHES_ALL = 0x030C0000  # from this version on a callback of one thread is all threads'


class Errands:
    """Which agents were asked for something that they have not done, and which may have a thread that they do not see."""

    def __init__(self, targets: Mapping[int, Target]) -> None:
        """`targets`: the programs that are traced, by pid."""
        self._targets = targets
        self._due = WeakKeyDictionary[Traced, float]()
        # When it is looked at next, how long it was quiet then, and the CPU time that it had.
        self._quiet = WeakKeyDictionary[Traced, tuple[float, float, int]]()

    def have_done(self, traced: Traced, done: bool) -> bool:
        """Whether an agent has `done` what it was asked to; where it has not, it is called some milliseconds later, and then again and again."""
        if done:
            self._due.pop(traced, None)
            return True
        now = time.monotonic()
        if now >= self._due.setdefault(traced, now + _SOON_S):
            self._call(traced)
            self._due[traced] = time.monotonic() + _AGAIN_S
        return False

    def have_left(self, all_traced: Iterable[Traced]) -> None:
        """The same of those that were asked to leave, and are here still."""
        for traced in all_traced:
            self.have_done(traced, False)

    def listen_to(self, traced: Traced, writes: bool) -> None:
        """Up to 3.11, where each thread has its own callback: a program that runs and reports nothing may have one that nobody has looked for."""
        now = time.monotonic()
        at, after, before = self._quiet.get(traced, (0.0, _QUIET_S, 0))
        if traced.arena.python >= _WATCHES_ALL or (now < at and not writes):
            return
        if writes:
            self._quiet[traced] = (now + _QUIET_S, _QUIET_S, -1)
            return
        ticks = _cpu_ticks(traced.ids.pid)
        if 0 <= before < ticks:
            self._call(traced)
            after = min(2 * after, _MOST_QUIET_S)
        self._quiet[traced] = (now + after, after, ticks)

    def _call(self, traced: Traced) -> None:
        from pytrace_ebpf.record.agent import inject  # imported here: a launched program does not need it, and waits for all imports

        target = self._targets.get(traced.ids.pid)
        if target is not None:
            with suppress(TargetError, HostError, OSError):  # it does it when it comes to it
                inject.look(target, Descriptor(os.open(agent_library(), os.O_RDONLY)))


def _cpu_ticks(pid: int) -> int:
    """The CPU time of a process; 0 where it has ended."""
    try:
        return sum(map(int, stat.fields(Path(f"/proc/{pid}/stat").read_bytes())[11:13]))
    except (OSError, ValueError):
        return 0
