"""Who else is on the cores: threads that are not traced, but took a core from one that is, or woke it."""

from contextlib import suppress
from pathlib import Path
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
        """Learn from rows of `sched`."""
        for columns in drained.get("sched", ()):
            self._meet(columns, set(self._processes.processes))

    def _meet(self, sched: Columns, traced: set[int]) -> None:
        if self._known.issuperset(np.unique(sched["other_tid"]).tolist()):
            return
        named = ((sched["kind"] == SchedKind.OUT) | (sched["kind"] == SchedKind.WAKING)) & ~np.isin(sched["other_pid"], list(traced))
        for tid in np.unique(sched["other_tid"][named]).tolist():  # one step per thread, not per switch
            if tid in self._known:
                continue
            if len(self._known) >= _MOST_KNOWN:
                self._known = {0}
            self._known.add(tid)
            with suppress(OSError, KeyError):  # it has ended already
                fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines() if ":\t" in line)
                if int(fields["Tgid"]) not in traced:
                    self._new.append({"tid": tid, "pid": int(fields["Tgid"]), "name": fields["Name"]})

    def cut(self) -> Rows:
        """The rows since the last time."""
        rows, self._new = self._new, []
        return {"neighbours": [columns_of(rows)]}
