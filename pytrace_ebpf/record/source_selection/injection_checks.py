"""Why the agent must not be injected into a running program: it would harm the program, or cannot be loaded there."""

from pathlib import Path

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.process.target import Target, living_threads


def cannot_inject(target: Target) -> str:
    """The reason, one sentence; "" where the agent can be injected safely."""
    # Imported here: a launched program waits for all imports and does not need these.
    from pytrace_ebpf.record.agent.inject.mapped_library import loader
    from pytrace_ebpf.record.agent.inject.ptrace import refuse_what_is_debugged

    try:
        refuse_what_is_debugged(target.process)
        loader(target)
    except TargetError as error:
        return str(error)
    except OSError as error:
        return f"process {target.pid} cannot be looked into ({error.strerror})"
    return filtered(target.pid)


def too_small(target: Target, counts_memory: bool) -> str:
    """Why there is too little memory for the agent, one sentence; "" where there is enough."""
    from pytrace_ebpf.record.agent.allowance import allowance

    try:
        allowance(target.pid, target.process.read("cgroup").decode(errors="replace"), 0, counts_memory)
    except TargetError as error:
        return str(error)
    except OSError:  # it has ended
        return ""
    return ""


def filtered(pid: int) -> str:
    """One sentence where a thread of a process runs under a seccomp filter; "" where none does."""
    for tid in living_threads(pid):
        try:
            status = Path(f"/proc/{pid}/task/{tid}/status").read_text(errors="replace")
        except OSError:
            continue
        if any(line.startswith("Seccomp:") and line.split()[1:] != ["0"] for line in status.splitlines()):
            return f"process {pid} has a seccomp filter, which may end it for a system call that the agent makes there"
    return ""
