"""Who else is on the cores: threads that are not traced, but took a core from one that is, or woke it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.record.tables import Columns
from pytrace_ebpf.trace.schema import SchedKind


class Neighbours:
    """Rows of the `neighbours` table: each thread once, read from /proc soon after it was first met."""

    def __init__(self) -> None:
        self._known = {0}  # the idle thread
        self._new: list[dict[str, Any]] = []

    def see(self, sched: Columns, traced: set[int]) -> None:
        """Learn from columns of `sched`; `traced`: processes whose threads are told of elsewhere."""
        named = ((sched["kind"] == SchedKind.OUT) | (sched["kind"] == SchedKind.WAKING)) & ~np.isin(sched["other_pid"], list(traced))
        for tid in np.unique(sched["other_tid"][named]).tolist():  # one step per thread, not per switch
            if tid in self._known:
                continue
            self._known.add(tid)
            with suppress(OSError, KeyError):  # it has ended already
                fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines() if ":\t" in line)
                if int(fields["Tgid"]) not in traced:
                    self._new.append({"tid": tid, "pid": int(fields["Tgid"]), "name": fields["Name"]})

    def take_new(self) -> list[dict[str, Any]]:
        """The rows since the last time."""
        rows, self._new = self._new, []
        return rows
