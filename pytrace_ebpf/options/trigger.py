"""What a flight recorder waits for, as a command line has it.

call FUNCTION > TIME        a call of it takes longer, also one that goes on; of a coroutine with what it awaits
raises FUNCTION             an exception leaves it
loop > TIME                 asyncio's loop is held longer by one thing that it runs
gil > SHARE [over TIME]     a thread waits for the GIL longer than this share of the last second, or of the last TIME
runq > SHARE [over TIME]    the same for a core
snap                        nothing but `pytrace-ebpf snap` and SIGUSR2, which always do
"""

import argparse
import difflib
import re

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.options import option_rules
from pytrace_ebpf.record.flight.conditions import SNAP, WORDS, Condition, Flight
from pytrace_ebpf.units import nanoseconds

AFTER_S, EVERY_S, TRACES = 2.0, 60.0, 10
_MOST = 32  # a bit each: MOST_CONDITIONS of rebuild/triggers.py
_SPAN_NS, _LEAST_SPAN_NS = 1_000_000_000, 10_000_000
_MOST_NS = 10**17  # three years
_FOREVER_S = _MOST_NS / 1e9
_FIRST = re.compile(r"\s*([^\s>]*)")
_NOT_A_SHARE = "a share is expected, like 30%"


class _Wrong(Exception):  # noqa: N818 - a sentence, with where
    def __init__(self, at: int, what: str) -> None:
        self.at, self.what = at, what


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of a flight recorder."""
    held = parser.add_argument(
        "--trigger", type=condition, action="append", default=[], metavar="CONDITION",
        help="hold what is recorded in memory, the last 10s or what --retain says, and write a trace only when this comes true: "
        "'call FUNCTION > 200ms', 'raises FUNCTION', 'loop > 100ms', 'gil > 30%%', 'runq > 50%% over 5s', or snap: only when pytrace-ebpf snap or "
        "SIGUSR2 asks for it. FUNCTION as of --args. May be given several times (docs/flight-recorder.md)",
    )  # fmt: skip
    option_rules.also(parser, held, "--when")
    parser.add_argument("--after", type=_seconds, metavar="TIME", help=f"of --trigger: how long a trace goes on after what set it off ({AFTER_S:g}s)")
    parser.add_argument(
        "--from-call", dest="trigger", type=_from_call, action="append", metavar="FUNCTION",
        help="record nothing until this function is called; FUNCTION as of --args. With --source agent or usdt",
    )  # fmt: skip
    parser.add_argument("--for", dest="lasts", type=_seconds, metavar="TIME", help="of --from-call: how long it records from then on (to the end)")
    parser.add_argument("--every", type=_seconds, metavar="TIME", help=f"of --trigger: minimum time between traces ({EVERY_S:g}s)")
    parser.add_argument("--traces", type=_count, metavar="N", help=f"of --trigger: end the recording after N traces ({TRACES})")


def flight(args: argparse.Namespace) -> Flight | None:
    """What the command line asks for; None where it is no flight recorder. Raises UsageError."""
    if len(args.trigger) > _MOST:
        raise UsageError(f"--trigger is given {len(args.trigger)} times; {_MOST} conditions are the most.")
    if any(condition.begins for condition in args.trigger):
        return Flight(tuple(args.trigger), _FOREVER_S if args.lasts is None else args.lasts, 0.0, 1)
    times = (AFTER_S if args.after is None else args.after, EVERY_S if args.every is None else args.every)
    return Flight(tuple(args.trigger), *times, args.traces or TRACES) if args.trigger else None


def _from_call(text: str) -> Condition:
    if not text.strip() or len(text.split()) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no function; give one, like app.handle")
    return Condition(f"--from-call {text}", "call", text, begins=True)


def condition(text: str) -> Condition:
    """A condition. Raises ArgumentTypeError, one sentence with the place of what is wrong."""
    try:
        return _condition(text)
    except _Wrong as wrong:
        raise argparse.ArgumentTypeError(f"{text!r} is not a condition: at character {wrong.at + 1} {wrong.what}") from None


def _condition(text: str) -> Condition:
    found = _FIRST.match(text)
    assert found
    word, at = found[1], found.end()
    if word not in WORDS:
        close = difflib.get_close_matches(word, WORDS, 1)
        raise _Wrong(at - len(word), f"one of {', '.join(WORDS)} is expected" + (f"; did you mean {close[0]}?" if close else ""))
    said = " ".join(text.split())
    if word == SNAP:
        return _nothing_more(text, at, Condition(said, word))
    if word == "raises":
        pattern, end = _word(text, at)
        if not pattern:
            raise _Wrong(len(text), "a function is expected, like app.handle")
        return _nothing_more(text, end, Condition(said, word, pattern))
    border = text.rfind(">") if word == "call" else text.find(">", at)  # a name may have <locals> in it
    between, rest = (text[at:border], border + 1) if border >= at else (text[at:], len(text))
    if word == "call" and (border < at or not between.strip()):
        missing = "a function is expected, like app.handle" if not between.strip() else "> and a time are expected"
        raise _Wrong(border if border >= at else len(text), missing)
    if word == "call":
        if len(between.split()) > 1:
            raise _Wrong(at + between.index(between.split()[1], len(between.split()[0])), "> and a time are expected, after one function")
        return Condition(said, word, between.strip(), _time(text, rest, len(text)))
    if border < at or between.strip():
        raise _Wrong(at + len(between) - len(between.lstrip()), f"> and a {'time' if word == 'loop' else 'share'} are expected")
    if word == "loop":
        return Condition(said, word, over_ns=_time(text, rest, len(text)))
    return _share(text, rest, word, said)


def _share(text: str, at: int, word: str, said: str) -> Condition:
    """SHARE [over TIME]."""
    number, end = _word(text, at)
    found = re.fullmatch(r"(\d{1,2}(?:\.\d{1,6})?)%", number)
    if not found or not (share := float(found[1])):
        raise _Wrong(end - len(number), _NOT_A_SHARE)
    over, begin = _word(text, end)
    if over not in ("", "over"):
        raise _Wrong(begin - len(over), "the end, or over and a time, is expected")
    span_ns = _time(text, begin, len(text)) if over else _SPAN_NS
    if span_ns < _LEAST_SPAN_NS:
        raise _Wrong(begin, "a time of at least 10ms is expected")
    span_ns -= span_ns % 10  # it is looked at in tenths
    return Condition(said, word, over_ns=round(span_ns * share / 100), span_ns=span_ns)


def _word(text: str, at: int) -> tuple[str, int]:
    """The next word, up to a blank, and where it ends; "" at the end."""
    found = re.compile(r"\s*(\S*)").match(text, at)
    assert found
    return found[1], found.end()


def _time(text: str, at: int, end: int) -> int:
    said = text[at:end].strip()
    begin = at + len(text[at:end]) - len(text[at:end].lstrip())
    try:
        ns = nanoseconds(said)
    except UsageError:
        ns = 0
    if not 0 < ns <= _MOST_NS:
        raise _Wrong(begin, "a time is expected, like 200ms or 1.5s")
    return ns


def _nothing_more(text: str, at: int, found: Condition) -> Condition:
    more, end = _word(text, at)
    if more:
        raise _Wrong(end - len(more), "the end is expected")
    return found


def _seconds(text: str) -> float:
    ns = nanoseconds(text)
    if ns > _MOST_NS:
        raise argparse.ArgumentTypeError(f"{text} is too long a time")
    return ns / 1e9


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of traces; give one from 1")
    return count
