"""Who else is on the cores: threads that are not traced, but had a core that one that is waited for, or woke it."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pytrace_ebpf.record.output.tables import Columns, columns_of
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.recorder import Recorder, Rows
from pytrace_ebpf.trace.schema import SchedKind

_MOST_KNOWN = 1 << 16  # then they are met anew


class ExternalThreads(Recorder):
    """Rows of the `neighbours` table: each thread once, read from /proc soon after it was first met."""

    def __init__(self, processes: Processes) -> None:
        """`processes`: those whose threads are traced, and reported elsewhere."""
        self._processes = processes
        self._known = {0}  # the idle thread
        self._new: list[dict[str, Any]] = []

    def observe(self, drained: Rows) -> None:
        """Learn from rows of `sched` and `external_switches`."""
        traced = set(self._processes.processes)
        for columns in drained.get("external_switches", ()):  # first: these have names
            tids, first = np.unique(columns["tid"], return_index=True)
            rows = zip(tids.tolist(), columns["pid"][first].tolist(), columns["name"][first].tolist(), strict=True)
            gone = {tid: {"tid": tid, "pid": pid, "name": name, "cgroup": ""} for tid, pid, name in rows if pid not in traced}
            self._meet(tids, traced, gone)
        for columns in drained.get("sched", ()):
            if not self._known.issuperset(np.unique(columns["other_tid"]).tolist()):
                self._meet(columns["other_tid"][_external(columns, traced)], traced)

    def _meet(self, tids: np.ndarray, traced: set[int], gone: Mapping[int, dict[str, Any]] = MappingProxyType({})) -> None:
        """`gone`: rows of those that may have ended already."""
        for tid in np.unique(tids).tolist():  # one step per thread, not per switch
            if tid in self._known:
                continue
            if len(self._known) >= _MOST_KNOWN:
                self._known = {0}
            self._known.add(tid)
            try:
                fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines() if ":\t" in line)
                if int(fields["Tgid"]) not in traced:
                    self._new.append({"tid": tid, "pid": int(fields["Tgid"]), "name": fields["Name"], "cgroup": _cgroup(tid)})
            except (OSError, KeyError):  # it has ended already
                if tid in gone:
                    self._new.append(gone[tid])

    def cut(self) -> Rows:
        """The rows since the last time."""
        rows, self._new = self._new, []
        return {"neighbours": [columns_of(rows)]}


def _external(sched: Columns, traced: set[int]) -> np.ndarray:
    """Which rows name a thread that took a core, or woke another, and is none of the processes `traced`."""
    took_or_woke = (sched["kind"] == SchedKind.OUT) | (sched["kind"] == SchedKind.WAKING)
    found: np.ndarray = took_or_woke & ~np.isin(sched["other_pid"], list(traced))
    return found


def _cgroup(tid: int) -> str:
    """The path of its control group, of version 2 where it has one below the root, else of the CPU controller; empty for the root."""
    groups = [line.split(":", 2) for line in Path(f"/proc/{tid}/cgroup").read_text(errors="replace").splitlines()]
    paths = {controller: path for _, controllers, path in groups for controller in controllers.split(",")}
    return next((path for path in (paths.get("", ""), paths.get("cpu", "")) if path not in ("", "/")), "")
