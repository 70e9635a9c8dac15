"""What a rule is, once it is read: one value, whatever its form. docs/rules.md has the grammar."""

from dataclasses import dataclass, field
from enum import StrEnum

COROUTINE, REQUEST = "a coroutine", "a request"
"""What stands for any coroutine, and for any function that answers requests, in the place of a pattern."""
Group = tuple[str, ...]
"""Patterns of functions (pytrace_ebpf/patterns.py), or COROUTINE: a function belongs to it that one of them fits."""


class Form(StrEnum):
    """What a rule says of the calls of F, and of G."""

    NEVER = "never F [within G]"
    ONLY_WITHIN = "F only within G"
    ONLY_FROM = "F only from G"
    PRECEDES = "F before G"
    THEN = "every F then G within T"
    TAKES = "F takes at most T"
    AT_MOST = "at most N F in one G"
    RAISES = "F raises only E"
    GETS = "F gets ARG"
    NO_WAIT = "no wait"


@dataclass(frozen=True)
class Rule:
    """One rule. `functions` are its F, `others` its G, () for none; the other fields are of those forms that need them."""

    name: str
    text: str
    form: Form
    functions: Group = ()
    others: Group = ()
    limit_ns: int = 0  # T
    state: str = "wall"  # of TAKES: wall, or a part of it (trace.states.SPLIT without _ns)
    most: int = 0  # N
    scope: str = "thread"  # of PRECEDES and THEN: in the same thread, task or process
    exceptions: Group = ()  # of RAISES; () for none at all
    argument: str = ""
    type: str = ""  # of GETS: a shell pattern, "" for any
    values: tuple[float | None, float | None] | None = None  # of GETS: the least and the largest
    matching: str = ""  # of GETS: a shell pattern of the value
    kinds: Group = ()  # of NO_WAIT: kinds of trace.waits()
    locked: bool = False  # of NO_WAIT: while the thread has a lock; G, where it is given, are functions that wait for it
    where: tuple[str, int] = field(default=("", 0), compare=False)  # file and line of the rule

    @property
    def groups(self) -> tuple[Group, ...]:
        """Those that there are."""
        return tuple(group for group in (self.functions, self.others) if group)
