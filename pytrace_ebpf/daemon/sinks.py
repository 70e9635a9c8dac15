"""Where else the daemon's windows go: to servers, each by a thread of its own, and summed up to the port that Prometheus asks."""

import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from pytrace_ebpf.daemon.configuration import Configuration
from pytrace_ebpf.daemon.metrics_port import MetricsPort
from pytrace_ebpf.daemon.push import LAST_S, Push
from pytrace_ebpf.daemon.sending import most_payloads, payloads
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.live.sink import Closed
from pytrace_ebpf.services import service_of
from pytrace_ebpf.view.export.otlp import resource
from pytrace_ebpf.view.export.pprof import Span
from pytrace_ebpf.view.export.profile_windows import held_loops
from pytrace_ebpf.view.identities import identified
from pytrace_ebpf.view.metrics import Totals, text

_WINDOWS = 6  # that wait for a server


class Sinks:
    """Those of a configuration, until close()."""

    def __init__(self, configuration: Configuration, say: Callable[[str], None]) -> None:
        """`say` is given a sentence where the port cannot be had; the rest goes on without it."""
        self._push = [(each.kind, Push(each.server, _WINDOWS * most_payloads(each.kind))) for each in configuration.push]
        self._totals, self._text = Totals(), ""
        self._port: MetricsPort | None = None
        if configuration.metrics_port:
            try:
                self._port = MetricsPort(configuration.metrics_port, lambda: self._text)
            except HostError as error:
                say(str(error))

    def take(
        self, closed: Closed, profile: pa.Table, functions: pa.Table, processes: Mapping[int, Mapping[str, Any]], waits: pa.Table | None = None
    ) -> None:
        """A window: `profile` (schema.PROFILE), the `functions` that it joins, the rows of schema.PROCESSES by pid, and `waits` (PROFILE_WAITS)."""
        rows, joined = profile.to_pandas(), functions.to_pandas()
        if self._port:
            names = {pid: service_of(row) for pid, row in processes.items()}
            self._totals.add(
                rows,
                held_loops(rows, joined),
                names,
                {pid: identified(row) for pid, row in processes.items()},
                None if waits is None else waits.to_pandas(),
            )
            for pid in [pid for pid in self._totals.times if pid >= 0 and pid not in processes]:
                self._totals.ended(pid)
        if self._push and len(rows):
            host, period = platform.node(), int(closed.metadata["sampling"]["period_ns"])
            resources = {pid: resource(row, host) for pid, row in processes.items()}
            span = Span(time.time_ns() - (time.monotonic_ns() - closed.start_ns), closed.end_ns - closed.start_ns, period)
            for kind, push in self._push:
                for payload in payloads(kind, rows, joined, span, resources):
                    push.push(payload)

    def publish(self, status: Mapping[str, Any]) -> None:
        """Answer with this status of the daemon, from now on."""
        if self._port:
            self._text = text(status, self._totals)

    def status(self) -> dict[str, Any]:
        """How it is going: the servers, and the port (None: it cannot be had)."""
        return {"push": [{"kind": kind} | push.status() for kind, push in self._push], "metrics_port": self._port.port if self._port else None}

    def close(self) -> None:
        """Try once what waits, for all servers at a time, and answer no more."""
        for _, push in self._push:
            push.end()
        deadline_s = time.monotonic() + LAST_S
        for _, push in self._push:
            push.close(max(0.0, deadline_s - time.monotonic()))
        if self._port:
            self._port.close()
