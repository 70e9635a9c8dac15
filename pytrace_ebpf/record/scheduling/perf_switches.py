"""Context switches of one's own processes without eBPF: perf_event_open's SWITCH records, as an ordinary user may have them.

What holds where (tried as an ordinary user on Linux 6.18 with perf_event_paranoid 1, 2 and 3; the refusals are the documented ones):
- the kernel as it is published: permitted to everybody for processes of one's own, whatever kernel.perf_event_paranoid
  says, since nothing of the kernel is looked at; with 516 KiB of ring per core and user (kernel.perf_event_mlock_kb);
- Debian's and Ubuntu's kernels refuse (EACCES) where kernel.perf_event_paranoid is 3 or more, which is their default;
- the default seccomp filter of a container refuses (EPERM); gVisor has no such call (ENOSYS).
One event per core with `inherit` covers every thread and child of the process that comes later. A record says
when a thread got or left a core and whether it was still runnable, but not when it was woken nor what it waited for.
Record layouts: include/uapi/linux/perf_event.h.
"""

import ctypes
import errno
import mmap
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.output.tables import where
from pytrace_ebpf.record.recorder import Rows
from pytrace_ebpf.record.scheduling.scheduling import Scheduling
from pytrace_ebpf.trace.schema import LOSS_CLASSES, SCHED, SYSCALL_UNKNOWN, SchedKind

_PAGES = (128, 32, 8)  # of data in a ring, the first that is granted: 16,384 switches; an ordinary user may lock 128 per core in all
_OPEN = processors.here().call("perf_event_open")
_CLOEXEC = 8
_HEAD, _TAIL = 1024, 1032  # in the first page
_SOFTWARE, _DUMMY = 1, 9
_TID, _TIME, _CPU = 1 << 1, 1 << 2, 1 << 7
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV, _COMM, _TASK = 1 << 1, 1 << 5, 1 << 6, 1 << 9, 1 << 13
_SAMPLE_ID_ALL, _COMM_EXEC, _USE_CLOCKID, _CONTEXT_SWITCH = 1 << 18, 1 << 24, 1 << 25, 1 << 26
_LOST, _COMM_RECORD, _EXIT, _FORK, _SWITCH = 2, 3, 4, 7, 14
_LOST_BYTES = 48
_OUT, _PREEMPT, _EXEC = 1 << 13, 1 << 14, 1 << 13  # bits of misc

_ATTR = np.dtype(
    [
        ("type", "<u4"), ("size", "<u4"), ("config", "<u8"), ("period", "<u8"), ("sample_type", "<u8"),
        ("read_format", "<u8"), ("flags", "<u8"), ("unused", "V44"), ("clockid", "<i4"), ("unused_too", "V16"),
    ]
)  # fmt: skip
_HEADER = [("type", "<u4"), ("misc", "<u2"), ("size", "<u2")]
_SAMPLE_ID = [("pid", "<u4"), ("tid", "<u4"), ("ts", "<u8"), ("cpu", "<u4"), ("reserved", "<u4")]
_SWITCH_RECORD = np.dtype(_HEADER + _SAMPLE_ID)
_TASK_RECORD = np.dtype([*_HEADER, ("pid", "<u4"), ("ppid", "<u4"), ("tid", "<u4"), ("ptid", "<u4"), ("ts", "<u8"), ("sample", _SAMPLE_ID)])
_FIELDS = tuple(column.name for column in SCHED.columns)
_DTYPES = tuple(np.dtype(column.type) for column in SCHED.columns)


class PerfSwitches(Scheduling):
    """The scheduling of one process, its later threads and its children; fills the `sched` table."""

    name = "perf"
    why = "perf reports context switches but neither wake-ups nor what was waited for"
    interval_s = 0.05  # a ring holds 16,384 switches of its core

    def __init__(self) -> None:
        self._rings: list[_Ring] = []
        self._begin: list[tuple[int, ...]] = []
        self._counted = self._lost = 0

    def add(self, pid: int) -> None:
        """Follow `pid`, which must have one thread and no child yet (held before its first instruction). Raises HostError.

        Further calls, for its children, do nothing: they are followed already.
        """
        if self._rings:
            return
        try:
            for cpu in _online():
                self._rings.append(_Ring(pid, cpu))
        except OSError as error:
            self.close()
            raise HostError(_why_not(error)) from None
        if not self._rings:
            raise HostError(f"process {pid} could not be followed on any core")
        self._begin = [_snapshot(pid)]

    def drain(self) -> Rows:
        """Rows of `sched` since the last call, in the order of time.

        IN, OUT (state 0 where it was still runnable, else 1; syscall never known), FORK, EXEC, EXIT, and the SNAPSHOT of the start.
        """
        rows, self._begin = self._begin, []
        parts = []
        for ring in self._rings:
            switches, others, lost = parse(ring.drain())
            parts.append(switches)
            rows += others
            self._counted += lost
        self._lost = max(self._lost, self._counted + sum(ring.full for ring in self._rings))
        if rows:
            parts.append({name: np.array(column) for name, column in zip(_FIELDS, zip(*rows, strict=True), strict=True)})
        columns = {
            name: np.concatenate([np.zeros(0, dtype), *(part[name] for part in parts)]).astype(dtype)
            for name, dtype in zip(_FIELDS, _DTYPES, strict=True)
        }
        return {"sched": [where(columns, np.argsort(columns["ts"], kind="stable"))]}

    def losses(self) -> np.ndarray:
        """Cumulative counts per loss class, int64: records that found their ring full; at least one where a full ring has not said how many."""
        lost = np.zeros(len(LOSS_CLASSES), np.int64)
        lost[LOSS_CLASSES.index("sched_ring")] = self._lost
        return lost

    def close(self) -> None:
        """Stop recording, also in the children."""
        for ring in self._rings:
            ring.close()
        self._rings = []


class _Ring:
    """The switches of one process tree on one core."""

    def __init__(self, pid: int, cpu: int) -> None:
        self.full = False
        self._fd = _open(pid, cpu)
        for pages in _PAGES:
            try:
                self._map = mmap.mmap(self._fd, (1 + pages) * mmap.PAGESIZE)
            except OSError as error:
                refused = error
            else:
                self._size = pages * mmap.PAGESIZE
                return
        os.close(self._fd)
        raise refused

    def drain(self) -> bytes:
        """The records since the last call, one behind the other."""
        head = int.from_bytes(self._map[_HEAD : _HEAD + 8], "little")
        tail = int.from_bytes(self._map[_TAIL : _TAIL + 8], "little")
        if head != tail:  # how much a full ring lost, it says with the first record that it has room for again
            self.full = head - tail > self._size - _LOST_BYTES
        at, count = mmap.PAGESIZE + tail % self._size, head - tail
        first = min(count, mmap.PAGESIZE + self._size - at)
        raw = self._map[at : at + first] + self._map[mmap.PAGESIZE : mmap.PAGESIZE + count - first]
        self._map[_TAIL : _TAIL + 8] = head.to_bytes(8, "little")
        return raw

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


def parse(raw: bytes) -> tuple[dict[str, np.ndarray], list[tuple[int, ...]], int]:
    """Records as (switches as columns of `sched`, rows for the rest in the order of _FIELDS, number of lost records).

    Switches have one size and come in long runs, which NumPy reads as they are; between the runs stand the few others.
    """
    runs, rows, lost, at = [np.zeros(0, _SWITCH_RECORD)], [], 0, 0
    while at < len(raw):
        run = np.frombuffer(raw, _SWITCH_RECORD, (len(raw) - at) // _SWITCH_RECORD.itemsize, at)
        other = run["type"] != _SWITCH
        count = int(other.argmax()) if other.any() else len(run)
        runs.append(run[:count])
        at += count * _SWITCH_RECORD.itemsize
        if at < len(raw):
            size = int.from_bytes(raw[at + 6 : at + 8], "little")
            record = raw[at : at + size]
            lost += int.from_bytes(record[16:24], "little") if record[0] == _LOST else 0
            rows += _task_rows(record)
            at += size
    return _switch_columns(np.concatenate(runs)), rows, lost


def _task_rows(record: bytes) -> list[tuple[int, ...]]:
    """The row of a thread's begin or end or of an exec; none for any other record."""
    head = np.frombuffer(record, np.dtype(_HEADER), 1)[0]
    if head["type"] == _COMM_RECORD and head["misc"] & _EXEC:
        who = np.frombuffer(record[-24:], np.dtype(_SAMPLE_ID), 1)[0]
        return [_row(who["ts"], who["pid"], who["tid"], SchedKind.EXEC)]
    if head["type"] not in (_FORK, _EXIT):
        return []
    task = np.frombuffer(record, _TASK_RECORD, 1)[0]
    if head["type"] == _EXIT:
        return [_row(task["ts"], task["pid"], task["tid"], SchedKind.EXIT, cpu=task["sample"]["cpu"])]
    creator = {"other_pid": task["ppid"], "other_tid": task["ptid"]}
    return [_row(task["ts"], task["pid"], task["tid"], SchedKind.FORK, state=int(task["pid"] == task["ppid"]), **creator)]


def _row(ts: int, pid: int, tid: int, kind: SchedKind, **more: int) -> tuple[int, ...]:
    row = {"ts": ts, "pid": pid, "tid": tid, "kind": kind, "cpu": -1, "state": 0, "syscall": -1, "holder_tid": -1, "resource_id": 0} | more
    return tuple(int(row.get(name, 0)) for name in _FIELDS)


def _switch_columns(records: np.ndarray) -> dict[str, np.ndarray]:
    out = (records["misc"] & _OUT) != 0
    nothing = np.zeros(len(records), np.int64)
    return {
        "ts": records["ts"],
        "pid": records["pid"],
        "tid": records["tid"],
        "kind": np.where(out, SchedKind.OUT, SchedKind.IN),
        "cpu": records["cpu"],
        "state": out & ((records["misc"] & _PREEMPT) == 0),
        "syscall": np.where(out, SYSCALL_UNKNOWN, -1),
        "address": nothing,
        "other_pid": nothing,
        "other_tid": nothing,
        "holder_tid": nothing - 1,
        "resource_id": nothing,
    }


def _open(pid: int, cpu: int) -> int:
    if processors.of(platform.machine()) is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attr: Any = np.zeros(1, _ATTR)
    attr["type"], attr["size"], attr["config"] = _SOFTWARE, _ATTR.itemsize, _DUMMY
    attr["sample_type"], attr["clockid"] = _TID | _TIME | _CPU, time.CLOCK_MONOTONIC
    attr["flags"] = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV | _COMM | _COMM_EXEC | _TASK | _SAMPLE_ID_ALL | _USE_CLOCKID | _CONTEXT_SWITCH
    fd = libc.syscall(_OPEN, ctypes.c_void_p(attr.ctypes.data), pid, cpu, -1, ctypes.c_ulong(_CLOEXEC))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(fd)


def _online() -> list[int]:
    """The cores that are on; an event on another one is refused."""
    cores: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def _snapshot(pid: int) -> tuple[int, ...]:
    """Where the thread is as the recording begins: off the core, since it is held."""
    return _row(time.monotonic_ns(), pid, pid, SchedKind.SNAPSHOT, state=1, syscall=SYSCALL_UNKNOWN)


def _why_not(error: OSError) -> str:
    if error.errno == errno.ENOSYS:
        return "this kernel has no perf_event_open, so context switches cannot be recorded"
    try:
        paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except (OSError, ValueError):
        paranoid = -1
    if error.errno in (errno.EPERM, errno.EACCES) and paranoid > 2:
        return (
            f"kernel.perf_event_paranoid = {paranoid} keeps context switches from ordinary users: "
            "sudo sysctl kernel.perf_event_paranoid=2 permits them"
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        return (
            "perf_event_open is forbidden here (a container's seccomp filter, or a process of another user), so context switches cannot be recorded"
        )
    return f"context switches cannot be recorded: perf_event_open says {error.strerror}"
