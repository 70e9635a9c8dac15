"""Scheduling of the traced threads: the BPF side's thread list, and each thread's state when recording began."""

import time
from pathlib import Path

import numpy as np

from pytrace_ebpf.record import parking
from pytrace_ebpf.record.bpf import Programs
from pytrace_ebpf.record.gil import Holders
from pytrace_ebpf.record.memory import Memory
from pytrace_ebpf.record.ring import Ring
from pytrace_ebpf.record.tables import Columns, sched_columns
from pytrace_ebpf.record.target import living_threads
from pytrace_ebpf.trace.schema import LOSS_CLASSES, SchedKind

# /proc/PID/stat's letter -> the bit sched_switch reports (include/linux/sched.h)
_STATE_BITS = {"R": 0, "S": 1, "D": 2, "T": 4, "t": 8, "X": 16, "Z": 32, "P": 64, "I": 2}
_INTERVAL_S = 0.05  # news of children come at once by an alert; each tick costs about half a millisecond of CPU
_STARTING_INTERVAL_S = 0.005  # while a Python is about to make its GIL, which may be contended 20 ms later
# Each missing event would make the split wrong. (Of a wake-up only the time in the run queue would be, and that is part of blocked then.)
_EXACT = tuple(f"tracepoint__sched__sched_{name}" for name in ("switch", "process_fork", "process_exec", "process_exit"))


class SchedProbes:
    """The programs of sched.c, attached to the whole host but recording only the threads they are told of."""

    name = "bpf"
    interval_s = _INTERVAL_S
    why = "the kernel's scheduling events are recorded by eBPF: every switch, wake-up and migration"

    def __init__(self, ring_pages: int, follow: bool) -> None:
        knobs: dict[str, object] = {
            "SCHED_RING_PAGES": ring_pages,
            "THREADS": 65536,
            "PROCESSES": 16384,
            "ALERT_RING_PAGES": 1,
            **parking.KNOBS,
        }
        if follow:
            knobs["FOLLOW"] = True
        self.programs = Programs("sched.c", knobs)
        self._threads = self.programs.table("threads")
        self.dtype = self.programs.dtype("sched_event")
        self._ring = Ring(self.programs.table("sched").map_fd, ring_pages * 4096, self.dtype)
        self._alerts = Ring(self.programs.table("alerts").map_fd, 4096, np.dtype("<u8"))
        self._holders = Holders(self.programs.table("gils"))
        self._snapshots: list[np.ndarray] = []
        self.alert_fd: int = self.programs.table("alerts").map_fd

    def drain(self) -> dict[str, Columns]:
        """Columns of `sched` since the last call, in ring order."""
        snapshots, self._snapshots = self._snapshots, []
        columns = sched_columns(np.concatenate([*snapshots, self._ring.drain(np.copy)]))
        self._holders.take_in(columns)
        self.interval_s = _STARTING_INTERVAL_S if self._holders.awaits_any else _INTERVAL_S
        return {"sched": columns}

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        counts = self.programs.losses()
        counts[LOSS_CLASSES.index("sched_missed")] = self.programs.missed(_EXACT)
        return counts

    def silence_alerts(self) -> None:
        """Read the wake-ups away, so that `alert_fd` polls as readable only for the next one."""
        self._alerts.drain(len)

    def start(self, pid: int) -> None:
        """Record every thread of `pid` from now on, with one SNAPSHOT row for each.

        A thread is looked at just before it is added, and again until no new one
        appears: those born meanwhile are added by the fork tracepoint.
        """
        self._holders.expect(pid)
        self.interval_s = _STARTING_INTERVAL_S
        memory = Memory(pid)
        seen: set[int] = set()
        while True:
            new = [tid for tid in living_threads(pid) if tid not in seen]
            if not new:
                break
            for tid in new:
                seen.add(tid)
                row = self._snapshot(memory, tid)
                if row is not None:
                    self._snapshots.append(row)
                self._threads[self._threads.Key(tid)] = self._threads.Leaf(pid)

    def _snapshot(self, memory: Memory, tid: int) -> np.ndarray | None:
        folder = Path(f"/proc/{memory.pid}/task/{tid}")
        row = np.zeros(1, self.dtype)
        row["ts"], row["pid"], row["tid"] = time.monotonic_ns(), memory.pid, tid
        row["kind"], row["syscall"], row["holder"] = SchedKind.SNAPSHOT, -1, -1
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            row["state"], row["cpu"] = _STATE_BITS.get(fields[0], 0), int(fields[36])
            call = (folder / "syscall").read_text().split()
        except OSError:
            return None
        if call[0] not in ("running", "-1"):
            row["syscall"], row["address"] = int(call[0]), int(call[1], 16)
            if int(call[0]) == parking.FUTEX:
                row["address"] = parking.parked_for(memory, int(call[1], 16), int(call[7], 16))
        return row

    def close(self) -> None:
        """Detach."""
        self.programs.close()
