"""What a stream is: one kind of rows, declared once. Its option, rules, permission, tables, losses, recorder and report follow from the declaration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytrace_ebpf.trace.shape import Shape
from pytrace_ebpf.trace.table import Table


def flag(name: str) -> str:
    """How the option of this name is written."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Loss:
    """One way to lose something while recording.

    number       LOSS_* of probes/events.h
    one, several what is lost, in words: "page fault", "page faults"
    meaning      what that means for the reader; "" for nothing more
    """

    name: str
    number: int
    one: str
    several: str
    meaning: str = ""


@dataclass(frozen=True)
class Option:
    """How a stream is asked for on the command line. Without `metavar` and `choices` it is a flag.

    parse    gives the value of a text; raises ValueError, which says in a sentence what is wrong with it
    bare     its value where the option stands alone; None: it needs a value
    several  it may be given several times, and its value is a list
    adds     to the value of the stream's own option, which need not be given then
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    bare: Any = None
    several: bool = False
    adds: tuple[str, ...] = ()

    @property
    def is_flag(self) -> bool:
        """Whether it has no value."""
        return not self.metavar and not self.choices

    @property
    def absent(self) -> Any:
        """Its value where it is not given."""
        return False if self.is_flag else [] if self.several else None


@dataclass(frozen=True)
class Counter:
    """A column whose rows add up to something that a timeline can show, and what that is called; where `resident` is true it begins at the resident memory."""

    table: str
    column: str
    title: str
    resident: bool = False


@dataclass(frozen=True)
class Stream:
    """One kind of rows. The names of modules are whole; a module is imported where it is needed, and so this imports none of them.

    name          that of its option, with _ for -
    users         whether users of the daemon may ask for it
    more_options  that have no effect without its own, unless they add to it
    tables        that it has rows in
    losses        ways to lose some of them
    recorder      its subclass of record.recorder.Recorder, as MODULE.CLASS; "" where the source of calls yields its rows
    rings         of the programs that follow threads (probes/sched.c), which its recorder drains: bytes of each
    needs_ebpf    why --rootless cannot have it, a clause; "" where it can
    needs_calls   it is of calls, so samples alone cannot have it
    needs_all_calls  where tracing becomes dear no calls are left out unasked, nor is the source changed
    needs_agent   why --source usdt cannot have it; "" where it can
    prefers_agent where no source is asked for the agent is taken
    values        the field of record.options.Options that has the values of its options
    excludes      other options that cannot go with it, and why
    brings        streams that are recorded with it, as far as they can be
    metadata      keys of the manifest that its recorder gives
    report        the module with `found` and `report` (view/by.py) of `report --by NAME`, where NAME is the module's own; "" for none
    in_page       whether a page of `report --html` shows that, too
    counters      what of it a timeline shows
    """

    name: str
    option: Option
    users: bool
    more_options: Mapping[str, Option] = field(default_factory=dict)
    values: str = "streams"
    tables: tuple[Table, ...] = ()
    losses: tuple[Loss, ...] = ()
    recorder: str = ""
    rings: Mapping[str, int] = field(default_factory=dict)
    needs_ebpf: str = ""
    needs_calls: bool = True
    needs_all_calls: bool = False
    needs_agent: str = ""
    prefers_agent: bool = False
    excludes: Mapping[str, str] = field(default_factory=dict)
    brings: tuple[str, ...] = ()
    metadata: Mapping[str, Shape] = field(default_factory=dict)
    report: str = ""
    in_page: bool = True
    counters: tuple[Counter, ...] = ()

    @property
    def flag(self) -> str:
        """How its option is written."""
        return flag(self.name)

    @property
    def options(self) -> dict[str, Option]:
        """Its options by name, that which asks for it first."""
        return {self.name: self.option, **self.more_options}

    @property
    def by(self) -> str:
        """The kind of report that shows it."""
        return self.report.rpartition(".")[2]

    def is_in(self, manifest: Mapping[str, Any]) -> bool:
        """Whether a trace with this manifest has it."""
        if self.metadata:
            return any(manifest.get(name) is not None for name in self.metadata)
        options = manifest["options"]
        return bool((options if self.values == "streams" else options.get(self.values) or {}).get(self.name))
