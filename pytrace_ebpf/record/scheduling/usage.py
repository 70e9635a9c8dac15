"""psutil samples of the traced processes, their threads and the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from pytrace_ebpf.lazy_imports import psutil
from pytrace_ebpf.record.output.tables import columns_of
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.recorder import Recorder, Rows

_EMPTY: dict[str, Any] = {
    "pid": -1, "idle_s": None, "rss_bytes": None, "vms_bytes": None, "threads": None,
    "voluntary_switches": None, "involuntary_switches": None, "cpus": None,
}  # fmt: skip


class Usage(Recorder):
    """One sample in every segment."""

    def __init__(self, processes: Processes) -> None:
        """`processes`: the living ones among them are sampled."""
        self._processes = processes
        self._known: dict[int, psutil.Process] = {}  # by pid: to make one takes a tenth of the time of a sample

    def cut(self) -> Rows:
        """Rows of `usage` for now."""
        living = self._processes.living
        self._known = {pid: self._known[pid] for pid in living if pid in self._known}
        return {"usage": [columns_of(sample(living, self._known))]}


def sample(pids: Iterable[int], known: dict[int, psutil.Process]) -> list[dict[str, Any]]:
    """Rows of the `usage` table for now; a process that is gone gives none. `known`: by pid, those sampled before; new ones are added."""
    ts = time.monotonic_ns()
    rows = [
        _EMPTY | {"ts": ts, "kind": "core", "id": core, "user_s": t.user, "system_s": t.system, "idle_s": t.idle}
        for core, t in enumerate(psutil.cpu_times(percpu=True))
    ]
    for pid in pids:
        try:
            if pid not in known:
                known[pid] = psutil.Process(pid)
            rows += _process(known[pid])
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return rows


def _process(process: psutil.Process) -> list[dict[str, Any]]:
    with process.oneshot():
        # Stamped where its CPU time is read: on busy cores that is long after the first process was.
        times, ts, threads = process.cpu_times(), time.monotonic_ns(), process.threads()
        memory, switches = process.memory_info(), process.num_ctx_switches()
    head = _EMPTY | {
        "ts": ts, "kind": "process", "pid": process.pid, "id": process.pid,
        "user_s": times.user, "system_s": times.system, "rss_bytes": memory.rss, "vms_bytes": memory.vms,
        "threads": len(threads), "voluntary_switches": switches.voluntary,
        "involuntary_switches": switches.involuntary,
    }  # fmt: skip
    return [head] + [
        _EMPTY | {
            "ts": ts, "kind": "thread", "pid": process.pid, "id": thread.id,
            "user_s": thread.user_time, "system_s": thread.system_time, "cpus": _affinity(thread.id),
        }
        for thread in threads
    ]  # fmt: skip


def _affinity(tid: int) -> str | None:
    """The cores that a thread may run on, as in "0-3,6"; None where it is gone."""
    try:
        cores = os.sched_getaffinity(tid)
    except OSError:
        return None
    firsts = sorted(core for core in cores if core - 1 not in cores)
    lasts = sorted(core for core in cores if core + 1 not in cores)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))
