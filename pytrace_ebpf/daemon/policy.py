"""Which process is sampled, recorded or ignored: the first rule that fits decides.

A program can change its command line and its name at will, and a user may make control groups of his own below his slice: by these a
rule only chooses. Who a process belongs to the kernel says.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pytrace_ebpf.identity_patterns import Who
from pytrace_ebpf.record.identity.groups import CONTAINER, paths

SAMPLE, RECORD, IGNORE = ACTIONS = ("sample", "record", "ignore")
_ID = re.compile(r"[0-9a-f]*\*?")
_LONGEST = 1 << 16  # bytes of a file of /proc


@dataclass(frozen=True)
class Process:
    """What rules look at: `command` its words with blanks between them, `uid` its real user, `cgroups` its paths (of version 1 several)."""

    pid: int
    command: str
    uid: int
    cgroups: tuple[str, ...]
    who: Mapping[str, Any] = field(default_factory=dict)  # as identity_patterns.Who.fits() takes it; {} where no rule asks

    @property
    def containers(self) -> tuple[str, ...]:
        """The ids of the container that it is in, by the names that Docker, Podman, containerd and CRI-O give to control groups."""
        return tuple(dict.fromkeys(found for path in self.cgroups for found in CONTAINER.findall(path)))


@dataclass(frozen=True)
class Rule:
    """Fits a process where all that it names does; of each any one of several. Patterns are globs."""

    action: str
    command: tuple[str, ...] = ()
    users: tuple[int, ...] = ()
    cgroup: tuple[str, ...] = ()
    container: tuple[str, ...] = ()  # the beginning of an id, or a name
    pids: tuple[int, ...] = ()
    service: tuple[str, ...] = ()
    pod: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # of `attach`, for RECORD

    def fits(self, process: Process) -> bool:
        """Whether it is about this process."""
        return (
            (not self.command or any(fnmatchcase(process.command, pattern) for pattern in self.command))
            and (not self.users or process.uid in self.users)
            and (not self.cgroup or any(fnmatchcase(path, pattern) for path in process.cgroups for pattern in self.cgroup))
            and (
                not self.container
                or any(fnmatchcase(name, f"{pattern}*") for name in process.containers for pattern in self.container)
                or _is(process, "container", self.container)
            )
            and (not self.pids or process.pid in self.pids)
            and all(
                not patterns or _is(process, kind, patterns) for kind, patterns in (("service", self.service), ("pod", self.pod), ("unit", self.unit))
            )
        )

    @property
    def asks_who(self) -> bool:
        """Whether it must be known who a process is."""
        return bool(self.service or self.pod or self.unit or any(not _ID.fullmatch(pattern) for pattern in self.container))


def _is(process: Process, kind: str, patterns: Sequence[str]) -> bool:
    return any(Who(kind, pattern).fits(process.who) for pattern in patterns)


def decide(rules: Sequence[Rule], otherwise: str, process: Process) -> Rule:
    """The first rule that fits, else one of the action `otherwise`."""
    return next((rule for rule in rules if rule.fits(process)), Rule(otherwise))


def read(pid: int, command: bytes) -> Process | None:
    """What /proc says of a process; None where it has ended. Raises OSError where that cannot be seen."""
    folder = Path(f"/proc/{pid}")
    try:
        status, cgroups = (_content(folder / name) for name in ("status", "cgroup"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The kernel escapes line breaks in the name, which comes before.
    uid = re.search(rb"^Uid:\t(\d+)", status, re.MULTILINE)
    groups = tuple(paths(cgroups.decode("utf-8", "replace")))
    return Process(pid, command.decode("utf-8", "replace"), int(uid[1]), groups) if uid else None


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST)
