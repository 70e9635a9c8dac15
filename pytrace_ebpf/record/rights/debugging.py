"""What a user may look into of other processes: what a debugger may, which Yama narrows (ptrace(2), Documentation/admin-guide/LSM/Yama.rst)."""

import os
from pathlib import Path

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_TO_WHOM = {1: "whoever started it", 2: "root", 3: "nobody"}
_ROOT = "run the command as root (sudo)"


def ptrace_scope() -> int:
    """kernel.yama.ptrace_scope; 0, no narrowing, where there is no Yama."""
    try:
        return int(SCOPE.read_text())
    except (OSError, ValueError):
        return 0


def why_refused(pid: int) -> str:
    """One sentence on a process that this user may not look into, and what to do."""
    refused, scope = f"process {pid} may not be inspected by this user", ptrace_scope()
    if not _is_own(pid) or scope not in _TO_WHOM:
        return f"{refused}; {_ROOT}"
    instead = {1: f"start it by pytrace-ebpf run, or {_ROOT}", 2: _ROOT, 3: "boot without it"}[scope]
    return f"{refused}: kernel.yama.ptrace_scope = {scope} reserves that to {_TO_WHOM[scope]}; {instead}"


def rootless() -> tuple[bool, str]:
    """Whether all that --rootless can do works here, and one sentence on it."""
    scope = ptrace_scope()
    if scope not in _TO_WHOM:
        return True, "without privileges, run --rootless records calls, and run and attach --rootless --sample the stacks of one's own processes"
    works = "records calls, and with --sample stacks; attach does not" if scope == 1 else "records calls; --sample does not"
    return (
        False,
        f"without privileges, run --rootless {works}, since kernel.yama.ptrace_scope = {scope} reserves looking into a process to {_TO_WHOM[scope]}",
    )


def _is_own(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.split()[1:] == [str(os.geteuid())] * 4 for line in lines if line.startswith("Uid:"))
