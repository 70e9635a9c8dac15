"""Scheduling of the traced threads: the BPF side's thread list, and each thread's state when recording began."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.cpython import parking
from pytrace_ebpf.record.cpython.gil import Holders
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.btf import KernelTypes
from pytrace_ebpf.record.output.tables import Columns, sched_columns
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.memory import Memory
from pytrace_ebpf.record.process.opened import Descriptors
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.process.target import living_threads
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.scheduling import quota, resources
from pytrace_ebpf.record.scheduling.scheduling import Scheduling
from pytrace_ebpf.record.scheduling.tracepoints import EXACT, LIVES, NOT_NEEDED, TRACEPOINTS, WITHOUT
from pytrace_ebpf.trace.schema import LOSS_CLASSES, SchedKind

# /proc/PID/stat's letter -> the bit sched_switch reports (include/linux/sched.h)
_STATE_BITS = {"R": 0, "S": 1, "D": 2, "T": 4, "t": 8, "X": 16, "Z": 32, "P": 64, "I": 2}
_PAGE = 4096
_INTERVAL_S = 0.1  # news of children come at once by an alert; each tick costs about a millisecond of CPU, with all recorders
_CALM_INTERVAL_S, _FEW = 1.0, 20_000  # at last, where no thread begins or ends, and fewer rows come than this each time: the ring holds 300,000
_EXTERNAL = 4 << 20  # bytes, for 130,000 switches of other programs between two looks at them
_PROGRAMS = 16  # pages, for 63 of them: whoever starts more at once has some whose arguments are read from /proc
_FEW_NAMES = 1_000  # of what is waited for: their ring holds 15,000
_FEW_PAGES = 256  # of Lives: some 18,000 rows, one for each thread that begins or ends
_STARTING_INTERVAL_S = 0.005  # while a Python is about to make its GIL, which may be contended 20 ms later
_ALL = {**resources.RINGS, "external_switches": _EXTERNAL}
_BEGIN_OR_END = (SchedKind.FORK, SchedKind.EXEC, SchedKind.EXIT)


class SchedProbes(Scheduling):
    """The programs of sched.c, attached to the whole host but recording only the threads in their map."""

    name: str | None = "bpf"
    interval_s = _INTERVAL_S
    _only: Collection[str] | None = None  # of the tracepoints of sched.c; None: all
    _needed: Collection[str] = EXACT
    why = "the kernel's scheduling events are recorded by eBPF: every switch, wake-up and migration"

    def __init__(
        self, ring_pages: int, follow: bool, learn: Callable[[np.ndarray], None] = lambda rows: None, rings: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """`rings`: of streams that drain them, bytes of each; others have a page.

        `learn`: is given rows of struct program_event, the ring's own memory, once those of `sched` are taken that they belong to.
        """
        self.programs = self._load({"sched": ring_pages * _PAGE, **(_ALL if self._only is None else {}), **rings}, follow)
        self._threads = self.programs.map("threads")
        self._dtype = self.programs.dtype("sched_event")
        self._ring = self.programs.ring("sched", self._dtype)
        self._external = self.programs.ring("external_switches", self.programs.dtype("external_switch"))
        self._alerts = self.programs.ring("alerts", np.dtype("<u8"))
        self._began = self.programs.ring("programs", self.programs.dtype("program_event"))
        self._learn = learn
        self._resources = resources.Resources(self.programs)
        self._holders = Holders(self.programs.map("gils"))
        self._snapshots: list[np.ndarray] = []
        self._added: set[int] = set()
        self.alert_fd = self._alerts.fd

    def drain(self) -> Rows:
        """Rows of `sched` since the last call, in ring order."""
        self._alerts.drain(len)  # before the rows: what comes now alerts anew
        snapshots, self._snapshots = self._snapshots, []
        columns = sched_columns(np.concatenate([*snapshots, self._ring.drain(np.copy)]))
        self._began.drain(self._learn)
        self._holders.take_in(columns)
        self._added -= set(columns["pid"][(columns["kind"] == SchedKind.EXIT) & (columns["pid"] == columns["tid"])].tolist())
        names = self._resources.drain()
        few = len(columns["kind"]) < _FEW and sum(len(each["resource_id"]) for each in names) < _FEW_NAMES
        calm = few and not np.isin(columns["kind"], _BEGIN_OR_END).any()
        if self._holders.awaits_any:
            self.interval_s = _STARTING_INTERVAL_S
        else:
            self.interval_s = min(2 * self.interval_s, _CALM_INTERVAL_S) if calm else _INTERVAL_S
        external = self._external.drain(_external)
        return {"sched": [columns], "external_switches": [external] if len(external["ts"]) else [], "resources": names}

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64."""
        counts = self.programs.losses()
        counts[LOSS_CLASSES.index("sched_missed")] = self.programs.missed(f"tracepoint_{name}" for name in self._needed)
        return counts

    def add(self, pid: int) -> None:
        """Record every thread of `pid` from now on, with one SNAPSHOT row for each.

        A thread is looked at just before it is added, and again until no new one
        appears: those born meanwhile are added by the fork tracepoint.
        """
        if pid in self._added:
            return
        self._added.add(pid)
        self._holders.expect(pid)
        self.interval_s = _STARTING_INTERVAL_S
        memory = descriptors = None
        with suppress(OSError, TargetError):  # one that ends, or is no program yet
            process = Pinned(pid)
            memory, descriptors = process.memory, Descriptors(process, process.memory)
        seen: set[int] = set()
        traced = np.zeros((), self._threads.value)
        traced["pid"] = pid
        while True:
            new = [tid for tid in living_threads(pid) if tid not in seen]
            if not new:
                break
            for tid in new:
                seen.add(tid)
                row = self._snapshot(pid, memory, descriptors, tid)
                if row is not None:
                    self._snapshots.append(row)
                self._threads.set(tid, traced)

    def _snapshot(self, pid: int, memory: Memory | None, descriptors: Descriptors | None, tid: int) -> np.ndarray | None:
        folder = Path(f"/proc/{pid}/task/{tid}")
        row = np.zeros(1, self._dtype)
        row["ts"], row["pid"], row["tid"] = time.monotonic_ns(), pid, tid
        row["kind"], row["syscall"], row["holder"] = SchedKind.SNAPSHOT, -1, -1
        try:
            fields = stat.fields((folder / "stat").read_bytes())
            row["state"], row["cpu"] = _STATE_BITS.get(fields[stat.STATE], 0), int(fields[stat.CPU])
            call = (folder / "syscall").read_text().split()
        except OSError:
            return None
        if call[0] not in ("running", "-1"):
            row["syscall"], row["address"] = int(call[0]), int(call[1], 16)
            if memory is not None and int(call[0]) == parking.FUTEX:
                row["address"] = parking.parked_for(memory, int(call[1], 16), int(call[7], 16))
            elif descriptors is not None and self._only is None:
                row["resource"] = self._resources.meet(pid, descriptors, int(call[0]), [int(word, 16) for word in call[1:7]])
        return row

    def missing(self) -> tuple[str, ...]:
        """What this kernel has no tracepoint for, or does not say where it keeps."""
        lacking = tuple(why for ability, why in WITHOUT.items() if not {*TRACEPOINTS[ability]}.isdisjoint(self.programs.lacking))
        if self._only is not None:
            return lacking
        unknown = {resources.NOT_KNOWN: "resources_known", quota.NOT_KNOWN: "quota_known"}
        return (*lacking, *(why for why, known in unknown.items() if not self._where[known]))

    def metadata(self) -> dict[str, Any]:
        """The manifest's `scheduling`; whether waits for a CPU quota are told apart, and switches of others are reported."""
        told = {} if self._only is not None else {"throttling": self._where["quota_known"], "external_switches": 1}
        return {"scheduling": {**super().metadata()["scheduling"], **told}}

    def close(self) -> None:
        """Detach."""
        self.programs.close()

    def _load(self, rings: Mapping[str, int], follow: bool) -> Programs:
        kernel = KernelTypes()
        self._where = resources.settings(kernel) | quota.settings(kernel)
        settings = {"follow": follow, **fields(kernel), **parking.SETTINGS, **self._where}
        kernel.keep()
        sizes = {"programs": _PROGRAMS * _PAGE, **rings}
        try:
            return Programs("sched.c", settings | {"state_given": True}, sizes, self._only, NOT_NEEDED)
        except HostError:  # sched_switch has no such argument: Linux 5.17 or older
            return Programs("sched.c", settings | {"state_given": False}, sizes, self._only, NOT_NEEDED)


class Lives(SchedProbes):
    """Of scheduling only which threads and processes begin and end, for those who follow them: no rows, and nothing runs at a switch."""

    name = None
    why = "samples say what threads waited for; --switches records every switch and wake-up beside them"
    _only, _needed = (*LIVES, "mark_victim"), LIVES

    def __init__(self, processes: Processes, follow: bool) -> None:
        super().__init__(_FEW_PAGES, follow, processes.ran.take_in)
        self._processes = processes

    def drain(self) -> Rows:
        """No rows; what began and ended learn the processes."""
        for columns in super().drain()["sched"]:
            self._processes.learn(columns)
        return {}


def _external(rows: np.ndarray) -> Columns:
    kinds = {"ts": np.int64, "cpu": np.int16, "pid": np.int32, "tid": np.int32}
    names, of = np.unique(rows["name"], return_inverse=True)
    texts = np.array([name.decode(errors="replace") for name in names.tolist()], object)
    return {**{name: rows[name].astype(kind) for name, kind in kinds.items()}, "name": texts[of]}


def fields(kernel: KernelTypes) -> dict[str, int]:
    """Where the kernel has what sched.c reads of it. Raises HostError where that is not known of what it cannot do without."""
    return {
        "task_pid": kernel.require("task_struct", "pid"),
        "task_state": kernel.require("task_struct", "__state", "state"),  # since Linux 5.14, and before
        "task_exit_state": kernel.require("task_struct", "exit_state"),
        "task_cpu": _task_cpu(kernel),
        **_of_ends(kernel),
        **_of_ids(kernel),
    }


def _of_ends(kernel: KernelTypes) -> dict[str, int]:
    """Where it says how a process ends; with a type information that has other names that is not known."""
    offsets = {
        "task_exit_code": kernel.offset("task_struct", "exit_code"),
        "task_leader": kernel.offset("task_struct", "group_leader"),
        "task_signal": kernel.offset("task_struct", "signal"),
        "signal_flags": kernel.offset("signal_struct", "flags"),
        "signal_exit_code": kernel.offset("signal_struct", "group_exit_code"),
    }
    return {"ends_known": int(None not in offsets.values()), **{name: offset or 0 for name, offset in offsets.items()}}


def _of_ids(kernel: KernelTypes) -> dict[str, int]:
    """Where it says what a thread is called in a pid namespace of its own; `task_thread_pid` 0: that is not known."""
    offsets = {
        "task_thread_pid": kernel.offset("task_struct", "thread_pid"),  # since Linux 4.19
        "pid_level": kernel.offset("pid", "level"),
        "pid_numbers": kernel.offset("pid", "numbers"),
    }
    return {name: 0 if offset is None or None in offsets.values() else offset for name, offset in offsets.items()}


def _task_cpu(kernel: KernelTypes) -> int:
    """Where a task has its core: in its thread_info, with which it begins, since Linux 5.16, itself before."""
    in_thread_info = kernel.offset("thread_info", "cpu")
    if in_thread_info is None:
        return kernel.require("task_struct", "cpu")
    return kernel.require("task_struct", "thread_info") + in_thread_info
