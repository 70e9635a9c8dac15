"""Rights that a process gives up for good, once what needs them runs in another one."""

import os

from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.rights import thread_rights
from pytrace_ebpf.record.rights.user import invoking_user

_PR_SET_NO_NEW_PRIVS = 38


def give_up() -> None:
    """Become who called sudo, where somebody did; else have no capabilities any more, in this thread and those that it starts. Raises OSError."""
    user = invoking_user()
    if user is not None:
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    else:
        thread_rights.limit((0, 0))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
