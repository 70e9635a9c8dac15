"""Which source of function events serves a process, and why."""

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.target import Target

FUNCTION_PROBES = ("function__entry", "function__return")


def truthful(target: Target) -> tuple[bool, str]:
    """Whether the target's function probes tell of every call, and one sentence that says why or what would serve."""
    if target.python_version is None:
        return False, f"the Python version of {target.binary_name} cannot be told, so its probes are not trusted"
    minor = target.python_version[:2]
    name = _name(target)
    if target.layout is None:
        return False, f"{name} is outside the versions that are known (3.8 to 3.15)"
    if any(probe not in target.binary.probes for probe in FUNCTION_PROBES):
        if (3, 12) <= minor <= (3, 14):
            return False, f"{name} has no function probes in any build (they were removed in 3.12 to 3.14)"
        return False, f"{name} was built without --with-dtrace and has no function probes"
    if target.free_threaded:
        return False, f"{name} has function probes that were never verified without a GIL"
    if minor == (3, 11):
        if "line" not in target.binary.probes:
            return False, f"{name} fires function__entry only with a `line` probe, which this build lacks"
        return True, f"{name} fires function__entry truthfully while the semaphore of `line` is raised"
    if minor >= (3, 15):
        if target.jit:
            return False, f"{name} runs with PYTHON_JIT=1 and code compiled by the JIT fires no probe; start it without"
        return (
            True,
            f"{name} fires its function probes for every call; generators and throw() need repair, which is done",
        )
    return True, f"{name} fires its function probes for every call"


def agent_serves(target: Target) -> tuple[bool, str]:
    """Whether the agent can record the target's calls, and one sentence that says why."""
    name = _name(target)
    if target.layout is None:
        return False, f"{name} is outside the versions that are known (3.8 to 3.15)"
    if target.free_threaded:
        return False, f"{name} runs without a GIL, for which the agent is not made"
    return True, f"the agent serves {name} whatever it was built with, and a call costs a tenth of two probe hits"


def choose(target: Target, wish: str, launched: bool) -> tuple[str, str]:
    """(source, one sentence that says why) for a target; `wish` is auto, usdt or agent.

    A running process is traced by its probes where they tell the truth, since then
    nothing enters it; a launched one by the agent, which costs a tenth. Raises TargetError.
    """
    answers = {"usdt": truthful(target), "agent": agent_serves(target)}
    if wish != "auto":
        serves, why = answers[wish]
        if not serves:
            other = "agent" if wish == "usdt" else "usdt"
            raise TargetError(f"{why}; use --source {other}" if answers[other][0] else why)
        return wish, why
    first, second = ("agent", "usdt") if launched else ("usdt", "agent")
    serves, why = answers[first]
    if serves:
        return first, why
    serves, why_second = answers[second]
    if serves:
        return second, f"{why}, but {why_second}" if second == "agent" else why_second
    raise TargetError(f"{why}, and {why_second}")


def _name(target: Target) -> str:
    version = target.version_text or "this Python, whose version cannot be told,"
    return f"CPython {version}" + (" (free-threaded)" if target.free_threaded else "")
