"""The sources of function events of one recording: each is made when the first process needs it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.choice import choose
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.source import CallSource, Recording
from pytrace_ebpf.record.source_agent import AgentCalls
from pytrace_ebpf.record.source_usdt import UsdtCalls
from pytrace_ebpf.record.target import Target
from pytrace_ebpf.trace.schema import LOSS_CLASSES


class Sources:
    """Chooses a source for each process, and is all of them together otherwise."""

    def __init__(self, options: Options, recording: Recording, launches: bool) -> None:
        """`launches`: a program is to be started. Raises UsageError for filters that only the agent has."""
        self._options, self._recording, self._launches = options, recording, launches
        self._made: dict[str, CallSource] = {}
        self.environment: Mapping[str, str] = {}
        if launches and options.source != "usdt":
            agent = self._made["agent"] = self._make_agent()
            self.environment = agent.environment

    def choose(self, target: Target) -> tuple[CallSource, str]:
        """(source, why) for a process. Raises TargetError."""
        name, why = choose(target, self._options.source, self._launches)
        if name not in self._made:
            self._made[name] = self._make_agent() if name == "agent" else self._make_usdt()
        return self._made[name], why

    def __iter__(self) -> Iterator[CallSource]:
        return iter(list(self._made.values()))

    def drain(self) -> None:
        """Emit the events of all since the last call."""
        for source in self:
            source.drain()

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        total = np.zeros(len(LOSS_CLASSES), np.int64)
        for source in self:
            total += source.losses()
        return total

    def stop(self) -> None:
        """Record nothing from now on."""
        for source in self:
            source.stop()

    def leave(self) -> None:
        """Leave every process as it was."""
        for source in self:
            source.leave()

    def cost(self) -> dict[str, Any]:
        """The manifest's `cost`: of the source that the first process was traced by."""
        chosen = self._recording.chosen
        first = chosen[0]["source"] if chosen else None
        source = self._made.get(first or "")
        return {
            "source": first,
            "ns_per_call": source.cost_per_call() if source else None,
            "waited_ns": sum(each.waited_ns for each in self),
        }

    def close(self) -> None:
        """Let go of everything, whatever happened."""
        for source in self:
            source.close()

    def _make_agent(self) -> AgentCalls:
        options = self._options
        return AgentCalls(self._recording, options.arena_bytes, options.filters, options.follow, self._launches)

    def _make_usdt(self) -> UsdtCalls:
        if self._options.filters.max_depth:
            raise TargetError("--max-depth is the agent's; use --source agent, or leave it out")
        return UsdtCalls(self._recording, self._options.call_ring_pages, self._options.filters, self._options.follow)
