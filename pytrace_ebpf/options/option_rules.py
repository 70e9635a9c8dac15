"""Which options have an effect on which answer or recording: one without effect is refused, not ignored."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.record.flight.conditions import OF_CALLS, OF_SHARES
from pytrace_ebpf.trace import stream
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE

if TYPE_CHECKING:
    from pytrace_ebpf.trace.reader import Trace

Applies = Mapping[str, Sequence[str]]  # an option -> the answers that it changes; an option that is not named changes all

REPORT: Applies = {
    "shapes": ("operator",),
    "request": ("request", "path"),
    "slowest": ("request", "path", "step", "rank"),
    "step": ("step", "rank"),
    "request_id": ("request", "path"),
    "function": ("path",),
    "what_if": ("path",),
    "html": ("function", "request"),
    "compensate": ("function", "module", "operator", "blas"),
}
_OF_THREADS = ("thread", "core", "gil", "opcode", "request", "step", "rank", "path", "perfetto")  # --by and --to that a daemon's sums cannot answer
EXPORT: Applies = {"request_id": ("otlp",), "value": ("folded", "pstats"), "min": ("folded", "callgrind")}


def _of_streams() -> Iterator[tuple[str, object, str, str]]:
    for each in STREAMS:
        if each.needs_ebpf:
            for name in (each.name, *(name for name, option in each.more_options.items() if option.adds)):
                yield "rootless", True, name, f"{each.needs_ebpf}, which --rootless does without"
        if each.needs_calls:
            yield "source", SAMPLES_ALONE, each.name, "no call is recorded"
        if each.needs_agent:
            yield "source", "usdt", each.name, each.needs_agent
        for other, why in each.excludes.items():
            yield each.name, each.option.choices[0] if each.option.choices else None, other, why


# Where the first option has this value, None: any, the second one can have no effect, and why.
RECORDING: Sequence[tuple[str, object, str, str]] = (
    ("rootless", True, "switches", "switches are recorded by eBPF, which --rootless does without"),
    *(
        ("source", SAMPLES_ALONE, name, "no call is recorded")
        for name in (
            "budget",
            "include",
            "exclude",
            "max_depth",
            "ring_mib",
        )
    ),
    ("source", "usdt", "rootless", "probes need privileges"),
    ("source", "usdt", "max_depth", "only the agent counts how deep a call is"),
    *_of_streams(),
)
# What --request takes, the same in every command.
_PATTERNS = "QUALNAME, MODULE:QUALNAME or FILE:QUALNAME with * in any of them; may be given several times"
REQUEST = f"these functions answer requests too: {_PATTERNS}"
REQUESTS_ALONE = f"by request and path: those of these functions alone, which answer requests: {_PATTERNS}"
PATH_OF = f"by path: of the calls of these functions, not of requests: {_PATTERNS}"
STEP = f"by step and rank: calls of these functions are the steps of a training, which else are found by its optimizer and its loader: {_PATTERNS}"
REQUEST_ID = "the request with this trace id of OpenTelemetry or another tracer (docs/trace-ids.md), or with this number, alone"
RUNS = ("cpus", "threads", "gil", "repeat", "output", "command")  # of `experiment`: without effect with --report


def to_answer(applies: Applies, args: argparse.Namespace, choice: str) -> None:
    """Raise UsageError for an option that does not change the answer that args.<choice> asks for."""
    asked = getattr(args, choice)
    for name, answers in applies.items():
        if given(args, name) and asked not in answers:
            where = " or ".join(filter(None, (", ".join(answers[:-1]), answers[-1])))
            raise UsageError(f"{flag(name)} has no effect with --{choice} {asked}, only with --{choice} {where}; leave it out.")


def to_recording(args: argparse.Namespace) -> None:
    """Raise UsageError for two options that cannot go together."""
    for name, value, other, why in RECORDING:
        has = source(args) if name == "source" else getattr(args, name, None)
        if (has == value if value is not None else has) and given(args, other):
            said = "--sample without --source" if value == SAMPLES_ALONE else flag(name) if value in (True, None) else f"{flag(name)} {value}"
            raise UsageError(f"{flag(other)} cannot go with {said}: {why}; leave one of them out.")
    _of_flight(args)
    if given(args, "switches") and source(args) != SAMPLES_ALONE:
        raise UsageError("--switches has no effect without --sample alone: beside calls switches are recorded anyway; leave it out.")
    for each in STREAMS:
        for name, option in each.more_options.items():
            if given(args, name) and not given(args, each.name) and not option.adds:
                give = f"give {each.flag} {each.option.choices[0]}, or leave it out" if each.option.choices else "leave it out"
                raise UsageError(f"{flag(name)} has no effect without {each.flag}; {give}.")


def _of_flight(args: argparse.Namespace) -> None:
    """Raise UsageError for conditions that this recording could not judge."""
    for name in ("after", "every", "traces"):
        if getattr(args, name) is not None and not args.trigger:
            raise UsageError(f"--{name} has no effect without --trigger; leave it out.")
    begins = any(condition.begins for condition in args.trigger)
    if args.lasts is not None and not begins:
        raise UsageError("--for has no effect without --from-call; leave it out.")
    if begins and (of_trigger := [name for name in ("after", "every", "traces") if getattr(args, name) is not None]):
        raise UsageError(f"--{of_trigger[0]} cannot go with --from-call: it is of --trigger; leave one of them out.")
    for condition in args.trigger:
        said = f"{condition.said} cannot go with "
        if condition.begins and len(args.trigger) > 1:
            raise UsageError(f"{said}--trigger, nor with another --from-call: a recording has one beginning; leave one of them out.")
        if condition.begins and given(args, "retain"):
            raise UsageError(f"{said}--retain: what was before it is not recorded, and nothing after it is dropped; leave one of them out.")
        if condition.word in OF_CALLS and source(args) == SAMPLES_ALONE:
            raise UsageError(f"{said}--sample without --source: no call is recorded; leave one of them out.")
        if condition.word in OF_CALLS and given(args, "budget"):
            raise UsageError(f"{said}--budget: calls of functions that are left out for a time would be missing; leave one of them out.")
        if condition.word == "raises" and source(args) == "usdt":
            raise UsageError(f"{said}--source usdt: only the agent sees what an exception leaves; leave one of them out.")
        if condition.word in OF_SHARES and given(args, "rootless"):
            raise UsageError(f"{said}--rootless: what threads wait for is recorded by eBPF alone; leave one of them out.")


def source(args: argparse.Namespace) -> str:
    """Where function events come from: by default `auto`, with --sample none, with --args, --memory or --trigger raises the agent: it alone can, or for less."""
    asked: str | None = getattr(args, "source", None)
    asked = asked or (SAMPLES_ALONE if given(args, "sample") else "auto")
    prefer = (each.name for each in STREAMS if each.prefers_agent)
    agents = any(given(args, name) for name in prefer) or any(condition.word == "raises" for condition in args.trigger)
    return "agent" if asked == "auto" and agents else asked


def may_leave_out(args: argparse.Namespace) -> bool:
    """Whether tracing may change its source, or leave out calls, where it becomes dear: nobody asked for a source, a budget, or for what happens in calls."""
    whole = (each.name for each in STREAMS if each.needs_all_calls)
    asks = any(given(args, name) for name in ("budget", "max_depth", *whole)) or any(condition.word in OF_CALLS for condition in args.trigger)
    return source(args) == "auto" and not asks


def given(args: argparse.Namespace, name: str) -> bool:
    """Whether the command line has this option; empty, false and 0 are defaults."""
    return bool(getattr(args, name, None))


def also(parser: argparse.ArgumentParser, option: argparse.Action, *earlier: str) -> None:
    """Take `option` by the names that it had `earlier`, too: help, completion and messages have the new one alone."""
    parser._option_string_actions.update(dict.fromkeys(earlier, option))


def flag(name: str) -> str:
    """How an option is written."""
    return "the command" if name == "command" else stream.flag(name)


def has_answer(trace: "Trace", asked: str) -> None:
    """Raise UsageError where the trace has sums of samples, and `asked`, of --by or --to, is about single threads and moments."""
    from pytrace_ebpf.analyze.samples.sampling import is_summed

    if is_summed(trace) and asked in _OF_THREADS:
        raise UsageError(
            f"{asked} needs what each thread did and when, which a daemon's sums do not have; pytrace-ebpf attach --sample PID records it, "
            "and the sums are reported by function, module, line, wait or task."
        )
