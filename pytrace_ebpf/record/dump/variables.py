"""What is bound to the variables of frames."""

from contextlib import suppress
from dataclasses import dataclass

from pytrace_ebpf.record.cpython.frames import SpentError
from pytrace_ebpf.record.cpython.locks import Stack
from pytrace_ebpf.record.cpython.values import Value, Values
from pytrace_ebpf.record.cpython.variables import Frames
from pytrace_ebpf.record.process.memory import MemoryFault

_MOST_VALUES = 50_000


@dataclass(frozen=True)
class Variable:
    """A variable of a frame, and what is bound to it."""

    name: str
    is_argument: bool
    value: Value


class Bound:
    """Reads what is bound to variables, of so many in all."""

    def __init__(self, frames: Frames, asked: str | None) -> None:
        """`asked`: "args" for those of what functions were given alone, "locals" for all, None for none."""
        self._frames, self._values, self._left = frames, Values(frames), _MOST_VALUES
        self._is_asked, self._arguments = asked is not None, asked == "args"

    def of(self, stack: Stack) -> list[list[Variable]]:
        """By frame."""
        return [self._frame(frame, code) for frame, code in stack] if self._is_asked else []

    def _frame(self, frame: int, code: int) -> list[Variable]:
        found = list[Variable]()
        with suppress(MemoryFault):
            given = self._frames.code(code).arguments
            for name, value in self._frames.variables(frame, code):
                if name in given or not self._arguments:
                    if not self._left:
                        raise SpentError
                    self._left -= 1
                    found.append(Variable(self._frames.name(name), name in given, self._values.describe(value)))
        return found
