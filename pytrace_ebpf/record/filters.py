"""Which calls are recorded: by module or path, and by depth; and of which what they were given. The agent applies the same rules in the target."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytrace_ebpf.patterns import fits_function, fits_package
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.stream import flag


@dataclass(frozen=True)
class Filters:
    """Patterns as in a shell (docs/patterns.md). A package stands for all that is in it."""

    include: tuple[str, ...] = ()  # empty: everything
    exclude: tuple[str, ...] = ()  # wins over include
    max_depth: int = 0  # of the recorded calls; 0: however deep
    c_calls: bool = False  # those of what is written in C as well
    lines: str | None = None  # exact: the lines that functions come to as well
    lines_of: tuple[str, ...] = ()  # of these functions alone, by patterns as of Observed; empty: of all
    opcodes: str | None = None  # exact: the instructions that functions execute are counted
    opcodes_of: tuple[str, ...] = ()  # as lines_of

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude or self.max_depth)

    @property
    def agents_alone(self) -> str:
        """Of what is asked for, an option that the agent alone can serve; "" where any source can."""
        asked = ("max_depth", *(stream.name for stream in STREAMS if stream.values == "filters" and stream.needs_agent))
        return next((flag(name) for name in asked if getattr(self, name)), "")

    def wants(self, file: str, module: str, is_main: bool) -> bool:
        """Whether calls of a function in this file and module, of the main program or not, are recorded."""
        included = not self.include or any(fits_package(pattern, file, module, is_main) for pattern in self.include)
        return included and not any(fits_package(pattern, file, module, is_main) for pattern in self.exclude)


# Names, in any case, of what is nobody's business.
REDACTED = (
    "*password*", "*passwd*", "*passphrase*", "pwd", "*_pwd", "*secret*", "*token*", "*credential*", "*authorization*", "auth", "*_auth",
    "*cookie*", "key", "*_key", "*apikey*",
)  # fmt: skip


def redacted(asked: Sequence[str]) -> tuple[str, ...]:
    """Names of what is redacted where --redact asks for these: the usual ones and these, or these alone where `none` is among them."""
    return tuple(dict.fromkeys((*(() if "none" in asked else REDACTED), *(name for name in asked if name != "none"))))


@dataclass(frozen=True)
class Observed:
    """Functions whose arguments and results are recorded, by patterns of functions; and names of what is redacted."""

    args: tuple[str, ...] = ()
    redact: tuple[str, ...] = REDACTED

    def __bool__(self) -> bool:
        return bool(self.args)

    def wants(self, file: str, module: str, qualname: str, is_main: bool, is_bare: bool) -> bool:
        """Whether values of this function are recorded; `is_bare`: its class is not known, so what a pattern has of it is left open."""
        return any(fits_function(pattern, file, module, qualname, is_main, is_bare) for pattern in self.args)

    def hides(self, name: str) -> bool:
        """Whether of what has this name only the type is recorded."""
        return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.redact)


NOTHING = Observed()


def patterns_of(filters: Filters, observed: Observed) -> list[tuple[str, str]]:
    """The patterns that were given, each with its option."""
    values = {"filters": filters, "observed": observed}
    of_streams = ((values.get(stream.values), name) for stream in STREAMS for name, option in stream.options.items() if option.metavar == "PATTERN")
    given = ((filters, "include"), (filters, "exclude"), *of_streams)
    return [(flag(name), pattern) for of, name in given for pattern in getattr(of, name, ())]
