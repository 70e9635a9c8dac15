"""Events that an agent's hooks looked at and did not write, and how many of them a call of a function has that is left out."""

from collections.abc import Iterable

from pytrace_ebpf.record.agent.traced import Traced

_SWITCHED_OFF = 0x030C0000  # from this version on the interpreter leaves out a function by itself


def passed(traced: Traced) -> int:
    """As its process counts them."""
    return traced.arena.counted("passed")


def passed_per_left_call(all_traced: Iterable[Traced]) -> int:
    """Up to 3.11 the profile function is called all the same, for the call's beginning and its end."""
    return 2 if any(traced.arena.python < _SWITCHED_OFF for traced in all_traced) else 0
