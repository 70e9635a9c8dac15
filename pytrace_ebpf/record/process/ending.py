"""How processes ended: exit code, signal, and whether the kernel killed them for want of memory."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytrace_ebpf.record.process import stat

# Of `sched.state` of an exit: bits above the status that wait() gives.
STATUS, OUT_OF_MEMORY, KNOWN, OF_AGENT = 0xFFFF, 0x10000, 0x20000, 0x40000
NOT_KNOWN: dict[str, Any] = {"exit_code": None, "exit_signal": None, "oom_killed": None, "memory_limit_bytes": None}
_NO_LIMIT = 1 << 60
_EXITING = 4  # include/linux/sched.h: PF_EXITING
_FILES = {"cgroup": "memory.limit_in_bytes", "cgroup2": "memory.max"}


def ending(state: int, groups: str) -> dict[str, Any]:
    """The columns of a process whose exits said so, `state` of all of them joined by or; {} where nothing is known. `groups`: of groups_of()."""
    ended = from_status(state & STATUS) | {"oom_killed": bool(state & OUT_OF_MEMORY)} if state & KNOWN else {}
    return ended | limit_of(ended, groups)


def limit_of(ended: Mapping[str, Any], groups: str) -> dict[str, Any]:
    """The column that one has besides which was killed for want of memory."""
    return {"memory_limit_bytes": memory_limit(groups)} if ended.get("oom_killed") else {}


def from_status(status: int) -> dict[str, Any]:
    """The same from what wait() gives."""
    signal = status & 0x7F
    return {"exit_code": None if signal else os.waitstatus_to_exitcode(status & 0xFF00), "exit_signal": signal}


def groups_of(pid: int) -> str:
    """The control groups that a process is in, for memory_limit(), which can be asked when it has ended; "" for one that is ending, which says others."""
    with suppress(OSError, IndexError):
        groups = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
        if not int(stat.fields(Path(f"/proc/{pid}/stat").read_bytes())[stat.FLAGS]) & _EXITING:
            return groups
    return ""


def memory_limit(groups: str) -> int | None:
    """The least limit of memory, in bytes, that holds for control groups on every level, as far as they are mounted here; None for none."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return None
    limits = [limit for folder, file in _folders(groups, mounts) if (limit := _number(folder / file)) is not None and limit < _NO_LIMIT]
    return min(limits, default=None)


def _folders(groups: str, mounts: str) -> Iterator[tuple[Path, str]]:
    """(folder, name of the file that has the limit) of the groups and of those that they are in."""
    for line in groups.splitlines():
        kinds, path = ([*line.split(":", 2)[1:], "", ""])[:2]
        kind = "cgroup2" if not kinds else "cgroup" if "memory" in kinds.split(",") else ""
        for mount in mounts.splitlines() if kind and not path.startswith("/..") else ():
            before, _, after = mount.partition(" - ")
            fields, system = before.split(), after.split()
            if len(fields) < 5 or system[:1] != [kind] or (kind == "cgroup" and "memory" not in system[-1].split(",")):
                continue
            root = fields[3].rstrip("/")
            if f"{path}/".startswith(f"{root}/"):
                folder = Path(fields[4] + path.removeprefix(root))
                yield from ((level, _FILES[kind]) for level in (folder, *folder.parents) if level.is_relative_to(fields[4]))


def _number(path: Path) -> int | None:
    """None where it is not there, or says `max`."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None
