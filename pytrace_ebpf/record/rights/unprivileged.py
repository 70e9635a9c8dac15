"""Starts a traced process's own program once more, with no more rights than that process has: drop_privileges.py does it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.process.pinned import Pinned, own_surroundings

_DROPS = Path(__file__).with_name("drop_privileges.py")
_JOINED = {"mnt": 0x00020000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000}  # CLONE_NEW*
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Rights:
    """What drop_privileges.py takes on. Descriptors are this process's, -1 for none."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    permitted: int
    bounding: int
    namespaces: int  # CLONE_NEW* flags of those to join
    process: int  # pidfd
    root: int
    cpu_s: int
    environment: Mapping[str, str]


def start(process: Pinned, words: Sequence[str], environment: Mapping[str, str], cpu_s: int) -> "subprocess.Popen[bytes]":
    """Start the executable of `process` with `words` as its command line, its standard files being pipes, stderr nowhere.

    Raises TargetError where it cannot have just the rights of `process`: that acts for several users, is confined in a
    way that cannot be taken on from outside (seccomp, a security module, a namespace of users or processes), or has
    become another program or another user's. One that has ended is taken as it was when it was pinned.
    """
    credentials, foreign = process.credentials, process.foreign_namespaces
    surroundings, ours = process.surroundings, own_surroundings()
    if credentials.owner is None or len(set(credentials.gids)) != 1:
        raise TargetError(f"process {process.pid} acts for several users")
    confined = credentials.seccomp or credentials.no_new_privileges or surroundings.label != ours.label
    if confined or foreign - _JOINED.keys():
        raise TargetError(f"process {process.pid} is confined in a way that its copy could not be")
    with ExitStack() as opened:
        pidfd = root = -1
        if foreign or surroundings.root != ours.root:
            process.check()
            pidfd = opened.enter_context(process.pidfd())
            root = process.open("root", os.O_PATH | os.O_DIRECTORY)
            opened.callback(os.close, root)
        elif not process.has_ended():
            process.check()
        rights = Rights(
            uid=credentials.owner,
            gid=credentials.gids[0],
            groups=credentials.groups,
            permitted=credentials.permitted,
            bounding=credentials.bounding,
            namespaces=sum(_JOINED[kind] for kind in foreign),
            process=pidfd,
            root=root,
            cpu_s=cpu_s,
            environment={**_ENVIRONMENT, **environment},
        )
        executable = process.executable.fileno()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_DROPS), json.dumps(asdict(rights)), str(executable), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[each for each in (pidfd, root, executable) if each >= 0],
        )
