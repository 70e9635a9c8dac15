"""What a flight recorder waits for, and how often it writes what it holds; cli/trigger.py reads it from a command line."""

from dataclasses import dataclass

OF_CALLS = ("call", "raises", "loop")
OF_SHARES = ("gil", "runq")
SNAP = "snap"
WORDS = (*OF_CALLS, *OF_SHARES, SNAP)


@dataclass(frozen=True)
class Condition:
    """One thing that may happen."""

    text: str  # as it was asked for
    word: str  # of WORDS
    pattern: str = ""  # call, raises: of functions, as filters.Observed has them
    over_ns: int = 0  # call, loop: so long; gil, runq: of span_ns
    span_ns: int = 0
    begins: bool = False  # call: what is recorded before it is not wanted (--from-call)

    @property
    def said(self) -> str:
        """How a command line has it."""
        return self.text if self.begins else f"--trigger '{self.text}'"


@dataclass(frozen=True)
class Flight:
    """A recording that is held in memory; when a condition comes true it becomes a trace."""

    conditions: tuple[Condition, ...]
    after_s: float  # how long a trace goes on after what set it off
    every_s: float  # what comes true earlier after what set off the last one sets off no other
    traces: int  # the recording ends after so many

    @property
    def begins(self) -> bool:
        """Whether a call begins the one trace, instead of setting off some."""
        return any(condition.begins for condition in self.conditions)

    @property
    def of_calls(self) -> bool:
        """Whether calls set it off."""
        return any(condition.word in OF_CALLS for condition in self.conditions)

    @property
    def of_shares(self) -> bool:
        """Whether what threads wait for sets it off."""
        return any(condition.word in OF_SHARES for condition in self.conditions)
