"""Prometheus' text format, of what a daemon knows: where the time of each process went, what was lost, and what the daemon costs.

https://prometheus.io/docs/instrumenting/exposition_formats. How many series there are is bounded: so many processes by name, all others together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.states import SPLIT

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_PROCESSES = 200
_OTHERS = "(others)"
_MOST_LABEL = 64  # characters of a value, which a program may have chosen
_STATES = (*SPLIT, "unknown_ns")
_OF_RESOURCES = (  # the attributes that are labels, with underscores for the dots
    "service.version", "deployment.environment.name", "k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "container.id",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One metric: its name, what it means, counter or gauge, and of each series its labels and value."""

    name: str
    help: str
    kind: str
    series: Sequence[tuple[Mapping[str, str], float]]


@dataclass
class Totals:
    """Sums by process since the daemon began, of the windows that it was given; those of processes that ended go with them.

    Memory is bounded by `most` processes: of more, those that come later count together.
    """

    most: int = MOST_PROCESSES
    names: dict[int, str] = field(default_factory=dict)
    times: dict[int, dict[str, int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    labels: dict[int, dict[str, str]] = field(default_factory=dict)
    waits: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(
        self,
        rows: pd.DataFrame,
        held: Mapping[int, int],
        names: Mapping[int, str],
        attributes: Mapping[int, Mapping[str, str]] | None = None,
        waits: pd.DataFrame | None = None,
    ) -> None:
        """A window: `rows` of table profile, the time that asyncio's loops were held (profile_windows.held_loops), and by process services and attributes.

        `waits`: of table profile_waits.
        """
        for pid, sums in rows.groupby("pid")[["samples", "off_samples", *_STATES]].sum().to_dict("index").items():
            key = self._key(int(pid), names.get(int(pid), ""))
            own = self.times.setdefault(key, {})
            for name, value in sums.items():
                own[name] = own.get(name, 0) + int(value)
            if key >= 0 and attributes:
                said = attributes.get(key, {})
                self.labels[key] = {name.replace(".", "_"): said[name] for name in _OF_RESOURCES if name in said}
            if pid in held:
                self.held[key] = self.held.get(key, 0) + held[int(pid)]

        if waits is not None:
            for (pid, kind), ns in waits.groupby(["pid", "kind"], observed=True)["total_ns"].sum().items():
                waited = self.waits.setdefault(int(pid) if int(pid) in self.times else -1, {})
                waited[str(kind)] = waited.get(str(kind), 0) + int(ns)

    def ended(self, pid: int) -> None:
        """A process is there no more."""
        for of in (self.names, self.times, self.held, self.labels, self.waits):
            of.pop(pid, None)

    def _key(self, pid: int, name: str) -> int:
        if pid not in self.times and len(self.times) - (-1 in self.times) >= self.most:
            pid = -1
        self.names[pid] = name if pid >= 0 else _OTHERS
        return pid


def text(status: Mapping[str, Any], totals: Totals) -> str:
    """All metrics: `status` of the daemon (what it does not say is left out), and `totals`."""
    return "".join(_family(family) for family in (*_of_processes(totals), *_of_daemon(status)) if family.series)


def _of_processes(totals: Totals) -> Iterator[Family]:
    labels = {pid: {"pid": str(pid) if pid >= 0 else "", "service": name} | totals.labels.get(pid, {}) for pid, name in totals.names.items()}
    seconds = [
        (labels[pid] | {"state": name.removesuffix("_ns")}, sums[name] / 1e9)
        for pid, sums in totals.times.items()
        for name in _STATES
        if name in sums
    ]
    yield Family("pytrace_ebpf_thread_seconds_total", "Time of a process's threads by state, from sampled stacks.", "counter", seconds)
    samples = [(labels[pid], sums["samples"] + sums["off_samples"]) for pid, sums in totals.times.items()]
    yield Family("pytrace_ebpf_process_samples_total", "Samples of a process's threads.", "counter", samples)
    waits = [(labels[pid] | {"kind": kind}, ns / 1e9) for pid, of in totals.waits.items() if pid in labels for kind, ns in of.items()]
    yield Family("pytrace_ebpf_wait_seconds_total", "Time in which a process's threads waited, by what for, from sampled stacks.", "counter", waits)
    held = [(labels[pid], time / 1e9) for pid, time in totals.held.items()]
    yield Family("pytrace_ebpf_asyncio_loop_held_seconds_total", "Time in which callbacks held asyncio's loop.", "counter", held)


# Of the daemon's status: the metric, what it means, its kind, and where it stands.
_STATUS = (
    ("samples_total", "Stacks that were sampled.", "counter", "samples"),
    ("lost_total", "Samples that were lost.", "counter", "lost"),
    ("windows_total", "Windows that were summed and written.", "counter", "windows"),
    ("windows_not_written_total", "Windows that could not be written.", "counter", "windows_not_written"),
    ("traces_removed_total", "Traces that were removed to keep within max_bytes and max_age.", "counter", "traces_removed"),
    ("directory_bytes", "Size of the daemon's directory.", "gauge", "bytes"),
    ("processes_sampled", "Processes that are sampled.", "gauge", "sampled"),
    ("processes_ignored", "Processes that the policy ignores.", "gauge", "ignored"),
    ("processes_left_out", "Processes beyond max_processes.", "gauge", "too_many"),
    ("cpu_seconds_total", "CPU time of the daemon itself.", "counter", "cpu_s"),
    ("started_cpu_seconds_total", "CPU time of what the daemon started and is over: recordings, helpers.", "counter", "started_cpu_s"),
    ("resident_memory_bytes", "Resident memory of the daemon itself.", "gauge", "rss_bytes"),
    ("uptime_seconds", "Time since the daemon began.", "gauge", "uptime_s"),
    ("reloads_total", "Times that the configuration was read again.", "counter", "reloads"),
)


def _of_daemon(status: Mapping[str, Any]) -> Iterator[Family]:
    for name, meaning, kind, key in _STATUS:
        value = status.get(key)
        yield Family(f"pytrace_ebpf_{name}", meaning, kind, [({}, value)] if isinstance(value, int | float) else [])
    for name in ("sent", "dropped", "refused", "failed"):
        found = [({"push": str(at), "server": str(each["server"])}, each[name]) for at, each in enumerate(status.get("push", ()), 1) if name in each]
        yield Family(f"pytrace_ebpf_push_{name}_total", f"Profiles or attempts to send one: {name}.", "counter", found)


def _family(family: Family) -> str:
    lines = [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{_labels(labels.items())} {value:.15g}" for labels, value in family.series]
    return "\n".join(lines) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    said = ",".join(f'{name}="{_escaped(printable(value)[:_MOST_LABEL], quote=True)}"' for name, value in labels if value)
    return f"{{{said}}}" if said else ""


def _escaped(text: str, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text
