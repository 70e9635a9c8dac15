"""Whose processes may be looked at, where this process records for somebody who asked the daemon: those that he could debug himself.

The rule is ptrace's (ptrace(2), "Ptrace access mode checking"), and it is the kernel that judges: a thread takes on the requester's ids and groups,
gives up every capability, and opens the memory of the pinned process, by the descriptor of its folder. What the rule says of ids and namespaces is looked
at here as well, for the sentence, and because nothing depends on one look alone.
"""

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.rights import thread_rights
from pytrace_ebpf.record.rights.debugging import ptrace_scope

if TYPE_CHECKING:  # which asks here
    from pytrace_ebpf.record.process.pinned import Pinned


@dataclass(frozen=True)
class Requester:
    """Who asked, as the kernel reports it of the other side of the socket.

    within_ptrace_scope  kernel.yama.ptrace_scope holds, too: from 1 on it forbids what no ancestor of the process asks for
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    within_ptrace_scope: bool = True


_requester: Requester | None = None


def record_only_for(requester: Requester) -> None:
    """From now on, for good, pin no process that `requester` may not trace; root may trace all."""
    global _requester
    _requester = requester if requester.uid else None


def refuse_others(process: "Pinned") -> None:
    """Raise TargetError for a process that the requester may not trace; nothing where this process records for root or for itself."""
    if _requester is not None and (why := why_not(process, _requester)):
        raise TargetError(why)


def why_not(process: "Pinned", requester: Requester) -> str | None:
    """Why the requester may not trace this process, a sentence; None where he may."""
    credentials = process.credentials
    if requester.uid not in credentials.uids:
        return f"process {process.pid} is another user's; you may trace your own processes, and root all"
    if set(credentials.uids) != {requester.uid} or set(credentials.gids) != {requester.gid}:
        return f"process {process.pid} acts for several users or groups, or for another group than you; only root may trace it"
    if "user" in process.foreign_namespaces:
        return f"process {process.pid} is in another user namespace; only root may trace it"
    if requester.within_ptrace_scope and (scope := ptrace_scope()):
        return (
            f"process {process.pid} may be traced by root alone, since kernel.yama.ptrace_scope is {scope}; the daemon's configuration can allow it"
        )
    if not _debuggable(process, requester):
        return f"process {process.pid} may not be debugged by its own user (it is not dumpable, or has rights of its own); only root may trace it"
    return None


def _debuggable(process: "Pinned", requester: Requester) -> bool:
    """What the kernel says: of attaching as a debugger, or, where Yama is not to count, of reading as one."""
    name, answers = "mem" if requester.within_ptrace_scope else "maps", list[bool]()

    def look() -> None:  # in a thread of its own, whose rights end with it
        try:
            thread_rights.take(requester.uid, requester.gid, requester.groups, (0, 0))
            os.close(process.open(name))
            answers.append(True)
        except OSError:
            answers.append(False)

    thread = threading.Thread(target=look, name="requester")
    thread.start()
    thread.join()
    return answers == [True]
