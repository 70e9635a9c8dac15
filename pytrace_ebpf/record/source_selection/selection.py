"""Which source of function events serves a process, and why."""

from collections.abc import Callable
from dataclasses import dataclass

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython.layout import known_versions
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.sampling import sampling_source as sampled
from pytrace_ebpf.record.source_selection.cost_estimate import CostEstimate
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE

FUNCTION_PROBES = ("function__entry", "function__return")


Price = Callable[[str, Target], float | None]  # ns of a call by a source, None where it is not known


@dataclass(frozen=True)
class Seen:
    """What was seen of a process before a source is chosen for it."""

    unencodable: str = ""  # a name at which the probes' own code would raise, quoted
    estimate: CostEstimate | None = None  # what the probes would cost it
    cannot_inject: str = ""  # why the agent must not be injected
    too_small: str = ""  # why there is no memory for it


@dataclass(frozen=True)
class Choice:
    """A source of function events for a process, one sentence that says why, and one that warns, or ""."""

    source: str
    why: str
    warning: str = ""


def truthful(target: Target) -> tuple[bool, str]:
    """Whether the target's function probes report every call, and one sentence that says why or what would serve."""
    if target.python_version is None:
        return False, f"the Python version of {target.binary_name} cannot be found out, so its probes are not trusted"
    minor = target.python_version[:2]
    name = _name(target)
    if target.layout is None:
        return False, f"{name} is outside the versions that are known ({known_versions()})"
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


def probes_serve(target: Target, seen: Seen) -> tuple[bool, str]:
    """Whether they do, as truthful() says, and harm nothing: up to 3.11 the interpreter's own probe code can raise an error."""
    serves, why = truthful(target)
    if not serves or not seen.unencodable:
        return serves, why
    return False, (
        f"process {target.pid} has a file, folder or function named {seen.unencodable}, which is no valid UTF-8: the probes of "
        f"{_name(target)} encode every name that they pass, and would raise an error in the program"
    )


def agent_serves(target: Target) -> tuple[bool, str]:
    """Whether the agent can record the target's calls, and one sentence that says why."""
    name = _name(target)
    if target.layout is None:
        return False, f"{name} is outside the versions that are known ({known_versions()})"
    return True, f"the agent serves {name} whatever it was built with, and a call costs a tenth of two probe hits"


def choose(target: Target, wish: str, launched: bool, seen: Seen = Seen(), bounded: bool = False, alone: str = "") -> Choice:
    """The source for a target; `wish` is auto, usdt, agent or sample; `bounded`: the cost is; `alone`: what was asked for that the agent alone
    can do, or "". Raises TargetError where none serves.

    A running process is traced by its probes where they are reliable and cost it little, since they leave the process
    unmodified; else, or with a bound on the cost, by the agent, where it can be injected safely. A launched process gets
    the agent, which costs a tenth.
    """
    if wish == SAMPLES_ALONE:
        return Choice(SAMPLES_ALONE, sampled.refuse_unknown(target))
    if bounded and target.free_threaded:
        raise TargetError(f"the cost for {_name(target)} cannot be bounded yet, as no function is left out without a GIL: leave out --budget")
    by_probes, why_probes = probes_serve(target, seen)
    by_agent, why_agent = (False, seen.too_small) if seen.too_small else agent_serves(target)
    if wish == "usdt":
        if by_probes:
            return Choice("usdt", why_probes, _slowing(seen))
        raise TargetError(f"{why_probes}; use --source agent" if by_agent else why_probes)
    if wish == "agent" or (launched and by_agent):
        if by_agent:
            return Choice("agent", why_agent, f"{seen.cannot_inject}: it is injected nevertheless, as requested" if seen.cannot_inject else "")
        raise TargetError(f"{why_agent}; use --source usdt" if by_probes else why_agent)
    if alone:
        only = f"only the agent records what {alone} asks for"
        if by_agent and not seen.cannot_inject:
            return Choice("agent", only)
        raise TargetError(f"{only}, and {seen.cannot_inject}; --source agent injects it nevertheless" if by_agent else f"{only}, and {why_agent}")
    if bounded and by_agent and not seen.cannot_inject:
        return Choice("agent", f"{why_agent}, which leaves a bounded cost more to spend")
    if by_probes and (launched or seen.estimate is None or seen.estimate.is_cheap):
        return Choice("usdt", why_probes)
    if by_agent and not seen.cannot_inject:
        return Choice("agent", _cost_sentence(target, seen.estimate) if by_probes and seen.estimate else f"{why_probes}, but {why_agent}")
    if by_probes:
        return Choice("usdt", why_probes, f"{_slowing(seen)}, and the agent cannot be used: {seen.cannot_inject or why_agent}")
    if by_agent:
        raise TargetError(f"{why_probes}, and {seen.cannot_inject}; --source agent injects the agent nevertheless")
    raise TargetError(f"{why_probes}, and {why_agent}")


def announced(target: Target, choice: Choice, seen: Seen, price: Price, bound: float | None = None) -> str:
    """One line: the source, why it was chosen, its cost per call, the estimated slowdown, and the alternative.

    `bound`: the share of the program's CPU time beyond which calls are left out unasked; None where none are.
    """
    parts = [f"{choice.source}: {choice.why}"]
    if choice.source == SAMPLES_ALONE:
        return parts[0]
    ns, estimate = price(choice.source, target), seen.estimate
    if ns is not None:
        share = None
        if estimate is not None and choice.source == "usdt":
            share = estimate.share
        elif estimate is not None and estimate.calls_per_s is not None:
            share = estimate.calls_per_s * ns / 1e9
        parts.append(
            f"about {_duration(ns)} a call"
            + (f", expected to take {percent(share)} of a core" + _whose(target, estimate) if share is not None else "")
        )
    other, way = ("agent", "inside") if choice.source == "usdt" else ("usdt", "outside")
    serves = agent_serves(target)[0] if other == "agent" else probes_serve(target, seen)[0]
    if serves and (ns := price(other, target)) is not None:
        parts.append(f"--source {other}: {_duration(ns)} a call, from {way}")
    if bound is not None and choice.source == "agent":
        parts.append(f"calls are left out while they would cost more than {percent(bound)} of its CPU time, which --source agent does not do")
    return "; ".join(parts)


def _whose(target: Target, estimate: CostEstimate | None) -> str:
    """Where the cost of another process of the family, the busiest, decides."""
    return f" in process {estimate.pid}, the busiest that belongs to it" if estimate and estimate.pid != target.pid else ""


def percent(share: float) -> str:
    """A share of time for a person, who needs no more than a digit or two of it."""
    return "under 1 %" if share < 0.01 else f"{share * 100:,.0f} %"


def _cost_sentence(target: Target, estimate: CostEstimate) -> str:
    return f"the probes, which trace from outside, would cost about {percent(estimate.share)} of a core{_whose(target, estimate)}"


def _slowing(seen: Seen) -> str:
    if seen.estimate is None or seen.estimate.is_cheap:
        return ""
    return f"tracing will cost about {percent(seen.estimate.share)} of a core"


def _duration(ns: float) -> str:
    return f"{ns / 1000:.1f} µs" if ns >= 1000 else f"{ns / 1000:.2f} µs"


def _name(target: Target) -> str:
    version = target.version_text or "this Python, whose version is not known,"
    return f"CPython {version}" + (" (free-threaded)" if target.free_threaded else "")
