"""How much memory a process may still take until the kernel ends something: of its control groups, on every level, and of the host.

Both versions of control groups are read where this process has them mounted, never where the process that is asked about does: what is
there is up to that. Files that the kernel only keeps at hand count as free, but for those that are mapped.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytrace_ebpf.printable import printable

_NO_LIMIT = 1 << 60
_UNSEEN = 128 << 20  # is assumed to be left in a group that cannot be seen from here
_HOST = "this machine"


@dataclass(frozen=True)
class Left:
    """What is left, in bytes, and of what: the one that has least."""

    size: int
    group: str  # identifies it
    described: str  # for sentences


@dataclass(frozen=True)
class _Version:
    """Names of one version's files, and of lines in them."""

    limits: tuple[str, ...]
    usage: str
    files: tuple[str, ...]
    mapped: str


_V1 = _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"), "total_mapped_file")
_V2 = _Version(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"), "file_mapped")


def memory_left(groups: str, mounts: str | None = None, host: Mapping[str, int] | None = None) -> Left:
    """What a process may take.

    groups  /proc/PID/cgroup
    mounts  this process's /proc/self/mountinfo, read where it is None
    host    fields of /proc/meminfo in bytes, likewise
    """
    mounts = Path("/proc/self/mountinfo").read_text(errors="replace") if mounts is None else mounts
    left = [Left((_meminfo() if host is None else host).get("MemAvailable", _NO_LIMIT), "", _HOST)]
    lines = [line.split(":", 2)[1:] for line in groups.splitlines()]
    first = [line for line in lines if "memory" in line[0].split(",")]  # where version 1 has the memory version 2 has not
    for kinds, path in first or [line for line in lines if not line[0]]:
        left += _of_group(path, kinds, mounts)
    return min(left, key=lambda each: each.size)


def _of_group(path: str, kinds: str, mounts: str) -> Iterator[Left]:
    """Of a group and of those that it is in, as far as they are mounted here."""
    version = _V1 if kinds else _V2
    seen = False
    for root, place in _mounted("cgroup" if kinds else "cgroup2", mounts):
        if path.startswith("/..") or not f"{path}/".startswith(f"{root.rstrip('/')}/"):
            continue
        folder = Path(place + path.removeprefix(root.rstrip("/")))
        seen |= folder.is_dir()
        for level in (folder, *folder.parents):
            if (size := _left_in(level, version)) is not None:
                yield Left(size, f"{kinds}:{level}", f"its control group {printable(str(level))}")
            if level == Path(place):
                break
    if not seen and path != "/":
        yield Left(_UNSEEN, f"{kinds}:{path}", "its control group, which cannot be seen from here, and is taken for a small one")


def _mounted(kind: str, mounts: str) -> Iterator[tuple[str, str]]:
    """(what of it, where) of each place where such control groups are mounted, of version 1 those of memory."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, system = before.split(), after.split()
        if len(fields) > 4 and system[:1] == [kind] and (kind == "cgroup2" or "memory" in system[-1].split(",")):
            yield fields[3], fields[4]


def _left_in(level: Path, version: _Version) -> int | None:
    """None where there is no limit, or it cannot be read."""
    limits = [_number(level / name) for name in version.limits]
    limit = min((each for each in limits if each is not None), default=_NO_LIMIT)
    usage = _number(level / version.usage)
    if limit >= _NO_LIMIT or usage is None:
        return None
    stat = dict.fromkeys((*version.files, version.mapped), 0)
    with suppress(OSError):
        for line in (level / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in stat:
                stat[name] = int(value)
    at_hand = max(0, sum(stat[name] for name in version.files) - stat[version.mapped])
    return max(0, limit - max(0, usage - at_hand))


def _number(path: Path) -> int | None:
    """None where it is not there, or says `max`."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _meminfo() -> Mapping[str, int]:
    with suppress(OSError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
    return {}


def own_groups() -> str:
    """/proc/PID/cgroup of this process, which what it starts inherits."""
    return Path(f"/proc/{os.getpid()}/cgroup").read_text(errors="replace")
