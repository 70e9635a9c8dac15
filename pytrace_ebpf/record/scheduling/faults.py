"""Page faults of the traced threads, and how the resident memory of their processes grows: programs of sched.c, which knows the threads."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import system_calls, tracefs
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.map import listed_cpus
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.output import tables
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.record.scheduling.sched import SchedProbes
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.streams.faults import GROWN

_INTERVAL_S, _CALM_S, _FEW = 0.1, 1.0, 20_000
_ONLINE = Path("/sys/devices/system/cpu/online")
_FIELD = re.compile(r"^\s+field:.*?(\w+);\s+offset:(\d+);", re.M)
_FIELDS = {"mm_id": 8, "curr": 12, "member": 16, "size": 24}  # struct rss_stat of sched.c
_SORTS = {0: "RssFile", 1: "RssAnon", 3: "RssShmem"}  # fault_event.sort, as /proc/PID/status calls it


class Faults(Recorder):
    """Counts on every core that is online now."""

    interval_s = _INTERVAL_S

    def __init__(self, programs: Programs, required: bool = True) -> None:
        """`programs`: those of sched.c. Where the kernel refuses to count, nothing is recorded; HostError is raised where it is `required`."""
        self._ring = programs.ring("faults", programs.dtype("fault_event"))
        self._resident: dict[tuple[int, int], int] = {}  # bytes, by process and sort
        self._descriptors: list[int] = []
        self._why_not, self._counts = "", True
        try:
            for major, name in enumerate(("fault_minor", "fault_major")):
                program = programs.program(name, system_calls.PERF_EVENT)
                self._descriptors += [system_calls.open_faults(program, cpu, bool(major)) for cpu in listed_cpus(_ONLINE)]
            number = _rss_stat()
            if number is None:
                self._why_not = "how the resident memory grows is not recorded: the kernel has no tracepoint kmem:rss_stat, or tracefs cannot be read"
            else:
                self._descriptors.append(system_calls.open_tracepoint(programs.program("resident", system_calls.TRACEPOINT), number))
        except OSError as error:
            self.close()
            if required:
                raise HostError(f"the kernel refuses to count page faults ({error.strerror}); see pytrace-ebpf doctor") from error
            self._counts = False
            self._why_not = f"page faults and how the resident memory grows are not recorded: the kernel refuses to count them ({error.strerror})"

    @classmethod
    def of(cls, options: Options, _recording: Recording, scheduling: Recorder) -> Self:
        """Required unless they come with --memory."""
        assert isinstance(scheduling, SchedProbes)
        return cls(scheduling.programs, not options.value_of("memory"))

    def add(self, pid: int) -> None:
        """What is resident now is no growth. The threads are those of the scheduling."""
        with suppress(OSError):
            said = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M))
            for sort, name in _SORTS.items():
                self._resident.setdefault((pid, sort), 1024 * int(said.get(name, 0)))

    def reset(self, pid: int, tid: int, ts: int) -> None:
        """Its memory is another one."""
        for sort in _SORTS:
            self._resident.pop((pid, sort), None)

    def drain(self) -> Rows:
        """Rows of `faults` since the last call."""
        records = self._ring.drain(np.copy)
        self.interval_s = _INTERVAL_S if len(records) > _FEW else min(2 * self.interval_s, _CALM_S)
        return {"faults": [self._columns(records)]} if len(records) else {}

    def _columns(self, records: np.ndarray) -> Columns:
        columns = tables.when_and_who(records)
        grown = np.zeros(len(records), np.int64)
        changes = np.flatnonzero(records["kind"] == GROWN)
        whose = np.stack((columns["pid"][changes], records["sort"][changes]), axis=1)
        for pid, sort in np.unique(whose, axis=0).tolist():
            own = changes[(whose == (pid, sort)).all(axis=1)]
            sizes = records["size"][own]
            grown[own] = np.diff(sizes, prepend=self._resident.get((pid, sort), sizes[0]))
            self._resident[pid, sort] = int(sizes[-1])
        return {**columns, "kind": records["kind"].astype(np.int8), "grown_bytes": grown}

    def missing(self) -> tuple[str, ...]:
        """Why growth, or all of it, is not recorded, where it is not."""
        return (self._why_not,) if self._why_not else ()

    def metadata(self) -> dict[str, Any]:
        """The manifest's `faults`, None where nothing is recorded; `growth`: 1 = that of the resident memory is."""
        return {"faults": {"growth": int(not self._why_not)} if self._counts else None}

    def stop(self) -> None:
        """Count no more."""
        self.close()

    def close(self) -> None:
        """Let go of the events; the programs are the scheduling's."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _rss_stat() -> int | None:
    """The tracepoint's number; None where there is none whose fields are known."""
    with suppress(OSError, ValueError):
        found = {name: int(offset) for name, offset in _FIELD.findall(tracefs.read("events/kmem/rss_stat/format"))}
        if _FIELDS.items() <= found.items():
            return int(tracefs.read("events/kmem/rss_stat/id"))
    return None
