"""The kinds of function and scheduling events as data, a part of trace/schema.py."""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto

PAUSED, OBJECT_LOCK = 1, 10  # of `sched.address`: a stop-the-world pause, and the last four bits of an object's own lock


class CallKind(IntEnum):
    """`events.kind`, as in probes/events.h."""

    ENTRY = 0
    RETURN = 1
    OPEN = 2
    RESET = 3
    UNWIND = 4
    RESUME = 5
    YIELD = 6
    LINE = 7
    STANDS = 8


class Effect(Enum):
    """What an event does to the stack of calls of its thread."""

    BEGINS = auto()  # a call
    ENDS = auto()  # the innermost one
    CLEARS = auto()  # ends all of them
    MOVES = auto()  # the innermost one is at a line


@dataclass(frozen=True)
class Meaning:
    """What a kind of function event does, and the column or status of `calls` that it sets, "" for none."""

    effect: Effect
    sets: str = ""


MEANINGS = {
    CallKind.ENTRY: Meaning(Effect.BEGINS),
    CallKind.RETURN: Meaning(Effect.ENDS),
    CallKind.OPEN: Meaning(Effect.BEGINS, "open_at_start"),
    CallKind.RESET: Meaning(Effect.CLEARS, "unwound"),
    CallKind.UNWIND: Meaning(Effect.ENDS, "unwound"),
    CallKind.RESUME: Meaning(Effect.BEGINS, "resumed"),
    CallKind.YIELD: Meaning(Effect.ENDS, "yielded"),
    CallKind.LINE: Meaning(Effect.MOVES),
    CallKind.STANDS: Meaning(Effect.MOVES),
}
BEGINNINGS = tuple(kind for kind, meaning in MEANINGS.items() if meaning.effect is Effect.BEGINS)


class SchedKind(IntEnum):
    """`sched.kind`, as in probes/events.h."""

    IN = 0
    OUT = 1
    WAKING = 2
    MIGRATE = 3
    FORK = 4
    EXEC = 5
    EXIT = 6
    SNAPSHOT = 7
