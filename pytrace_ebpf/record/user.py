"""Who called sudo: programs run as that user, and the trace is theirs."""

import os
import pwd
from pathlib import Path


def invoking_user() -> pwd.struct_passwd | None:
    """Who called sudo, where somebody did: the program runs as that user, not as root by accident."""
    uid = os.environ.get("SUDO_UID")
    if os.geteuid() != 0 or not uid or uid == "0":
        return None
    try:
        return pwd.getpwuid(int(uid))
    except (KeyError, ValueError):
        return None


def hand_over(directory: Path) -> None:
    """Give a trace to the invoking user, who is to read it, keep derived tables in it and remove it without sudo."""
    user = invoking_user()
    if user is None:
        return
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
