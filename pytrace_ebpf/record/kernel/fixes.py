"""Fixes what the host's findings say can be fixed: a plan of steps, and their carrying out by root.

Only fixed command lines are run: without a shell, in an environment of their own, and from files that root alone can change.
"""

import platform
import shlex
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import compile_ahead, headers
from pytrace_ebpf.record.kernel.distributions import Command, Distribution, distribution
from pytrace_ebpf.record.kernel.host import FIX, PACKED_HEADERS, SYSTEM_HEADERS, Finding, header_tree
from pytrace_ebpf.record.kernel.tracefs import TRACEFS

_FOLDERS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")
_ENVIRONMENT = {"PATH": ":".join(_FOLDERS), "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Step:
    """Of `commands` the first that succeeds; or else what `action` does. One that is not `needed` may fail."""

    commands: tuple[Command, ...] = ()
    action: Callable[[], None] | None = None
    sentence: str = ""
    needed: bool = True
    compiles: bool = False  # the eBPF programs, with what the steps before have brought

    def __str__(self) -> str:
        return self.sentence or " || ".join(map(shlex.join, self.commands))


def plan(found: Iterable[Finding]) -> list[Step]:
    """What fixes these findings. Raises HostError where packages are missing and the distribution is not known."""
    subjects = {finding.subject for finding in found if finding.fix == FIX}
    steps = [*_headers_at_hand()] if "headers" in subjects else []
    packaged = ({"BCC"} & subjects) | ({"headers"} & subjects if not steps else set())
    if packaged:
        known = distribution()
        if known is None:
            raise HostError(
                "this host is none of Debian, Ubuntu, Fedora, Arch and Alpine; install bcc's Python bindings and the kernel's headers with its package manager"
            )
        steps += _packages(known, packaged)
    if "tracefs" in subjects:
        steps.append(Step((("mount", "-t", "tracefs", "tracefs", str(TRACEFS)),)))
    if packaged or {"compiled", "headers"} & subjects:
        steps.append(Step(sentence="compile the eBPF programs for this kernel, once", compiles=True))
    return steps


def as_one_command(steps: Iterable[Step]) -> str:
    """The commands among the steps, for a shell of somebody who may not run them here."""
    text = ""
    for step in steps:
        if step.commands:
            one = str(step) if len(step.commands) == 1 else f"{{ {step}; }}"
            text += one + ("; " if not step.needed else " && ")
    return f"sudo sh -c {shlex.quote(text.rstrip('; &'))}" if text else FIX


def carry_out(steps: Iterable[Step], saying: Callable[[str], None]) -> None:
    """Run them, as root; `saying` gets each before. What they write goes to stderr. Raises HostError for the first that fails."""
    for step in steps:
        if step.compiles:
            saying(step.sentence)
            compile_ahead.compile_all(platform.release(), saying)
        elif step.action is not None:
            if step.sentence:
                saying(step.sentence)
            try:
                step.action()
            except (OSError, tarfile.TarError) as error:
                raise HostError(f"the kernel headers could not be put into {SYSTEM_HEADERS} ({error})") from error
        elif not any(_ran(command, saying) for command in step.commands) and step.needed:
            raise HostError(f"{step} failed; what it wrote above says why")


def program(name: str, folders: Iterable[str] = _FOLDERS, owner: int = 0) -> Path:
    """Where the command lies. Raises HostError where it does not, or anybody but `owner` could change it or a folder on the way."""
    for folder in folders:
        path = Path(folder) / name
        if path.exists():
            for each in (*_upwards(path.resolve()), *_upwards(path.parent.resolve())):
                status = each.stat()
                if status.st_uid not in (0, owner) or (status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX):
                    raise HostError(f"{path} is not run as root, as others than root can change {each}")
            return path
    raise HostError(f"there is no {name} on this host")


def _upwards(path: Path) -> Iterable[Path]:
    return (path, *path.parents)


def _ran(command: Command, saying: Callable[[str], None]) -> bool:
    saying(shlex.join(command))
    words = [str(program(command[0])), *command[1:]]
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=2, env=_ENVIRONMENT, cwd="/").returncode == 0


def _headers_at_hand() -> list[Step]:
    if PACKED_HEADERS.exists():
        return [Step(action=headers.unpack, sentence=f"unpack the kernel's own headers into {SYSTEM_HEADERS}")]
    parts = headers.trees()
    return [Step(action=lambda: headers.link(parts), sentence=f"link {' and '.join(map(str, parts))} in {SYSTEM_HEADERS}")] if parts else []


def _packages(known: Distribution, missing: set[str]) -> list[Step]:
    steps = [Step((known.refresh,), needed=False)] if known.refresh else []  # a third party's source that cannot be reached must not matter
    if "BCC" in missing:
        steps.append(Step(((*known.install, known.bcc),)))
    if "headers" in missing:
        steps.append(Step(tuple((*known.install, name) for name in known.headers_of(platform.release()))))
        steps.append(Step(action=_link_where_bcc_finds_none))
    return steps


def _link_where_bcc_finds_none() -> None:
    """What was installed can be of another kernel."""
    if not (Path("/lib/modules") / platform.release() / "build").is_dir() and header_tree() is None and (parts := headers.trees()):
        headers.link(parts)
