"""A finding as a person would say it: how much of what, in which function of one's own code, why, and who else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import NormalDist
from typing import Any

import pandas as pd

from pytrace_ebpf.analyze.findings.requests import Of
from pytrace_ebpf.analyze.findings.thread_pools import FullPool
from pytrace_ebpf.analyze.findings.waited import NOBODY
from pytrace_ebpf.analyze.functions.own_code import NONE
from pytrace_ebpf.formatting import clean, duration, percent
from pytrace_ebpf.trace.libraries import in_library
from pytrace_ebpf.units import plural

_MOSTLY, _ALL = 0.5, 0.95
_SEVERAL = 2
_HALF_ONE = 0.5
_ASYNCIO = "asyncio"
_LONGEST = 80  # characters of a statement


@dataclass
class Found:
    """A finding before it is said; functions by func_id, NONE for none. `words` and `kind` and so on are of waits, the rest of single rules."""

    rule: str
    ns: int
    own: int
    evidence: str
    line: int = NONE  # of `own`, that called `called`
    called: int = NONE
    other: int = NONE
    other_share: float = 1.0  # of ns
    words: str = ""
    waits: int = 0
    small: float = 0.0  # share of ns in waits of less than waited.SMALL_NS
    kind: str = ""
    syscall: str | None = None
    resource: str | None = None
    primitive: int = NONE
    whole_in_own: float = 1.0  # share of ns
    held: str = ""  # rule of what holds an event loop
    asked: str | None = None  # of a client library
    each: float = 0.0  # calls of `called` in each of `own`
    on_loop: bool = False
    pool: FullPool | None = None
    meanwhile: Mapping[str, Any] = field(default_factory=dict)
    failing: tuple[str, int, bool] | None = None  # what a sleep comes after: asked.Asked.failing
    short: Any = None  # pools.Pool that is waited for
    of: Of | None = None  # of which requests it is said to be a share; None: of all time at work
    square: float = 0.0  # of samples: the variance of ns, as far as it comes from those off the core
    error_ns: int | None = None  # one standard error; None where nothing is sampled

    def share(self, of_ns: int) -> float:
        """Of the time of its requests, or of `of_ns` where it is of none."""
        return min(1.0, self.ns * self.of.part / self.of.ns) if self.of else self.ns / of_ns

    @property
    def confidence(self) -> float | None:
        """The chance that the true time is more than half of ns, by the normal approximation; None where nothing is sampled."""
        if self.error_ns is None:
            return None
        return NormalDist().cdf(_MOSTLY * self.ns / self.error_ns) if self.error_ns else 1.0


class Names:
    """Functions (schema.FUNCTIONS) by func_id; `sites` gives schema.CALL_SITES."""

    def __init__(self, functions: pd.DataFrame, sites: Callable[[], pd.DataFrame]) -> None:
        self._functions, self._sites = functions.set_index("func_id"), sites

    def of(self, func_ids: "pd.Series[int]", column: str) -> "pd.Series[Any]":
        """A column of each of them, null for none."""
        return func_ids.map(self._functions[column]).astype("object")

    def row(self, func_id: int) -> Mapping[str, Any]:
        """All of one; {} for none."""
        return self._functions.loc[func_id].to_dict() if func_id in self._functions.index else {}

    def line(self, found: Found) -> int | None:
        """The line to look at: that which calls what takes the time or, where that is not known, the function's first; None for none."""
        if found.rule in ("many-calls", "awaits"):
            sites = self._sites()
            sites = sites[(sites["caller_id"] == found.own) & (sites["func_id"] == found.called) & sites["call_line"].notna()]
            found.line = int(sites.loc[sites["calls"].idxmax(), "call_line"]) if len(sites) else NONE
        line = found.line if found.line > 0 else int(self.row(found.own).get("first_line", NONE))
        return line if line > 0 else None

    def name(self, func_id: int) -> str:
        """Quoted."""
        return f"`{clean(self.row(func_id).get('qualname'))}`"

    def of_library(self, func_id: int) -> str:
        """Quoted, with its class or module; a function of own code by its name alone."""
        row = self.row(func_id)
        name, module = str(row.get("qualname")), str(row.get("module"))
        module = _ASYNCIO if module.startswith(f"{_ASYNCIO}.") else module  # whose modules are nothing to who calls it
        return f"`{clean(name if '.' in name or in_library(str(row.get('file'))) is False else f'{module}.{name}')}`"

    def at(self, func_id: int, line: int | None = None) -> str:
        """Quoted, with its place."""
        row = self.row(func_id)
        return f"{self.name(func_id)} ({clean(PurePath(str(row.get('file'))).name)}:{line or row.get('first_line')})"


def whose(of: Of, names: Names) -> str:
    """Which requests."""
    return plural(of.requests, "request") + (f" of {names.name(of.endpoint)}" if of.endpoint >= 0 else "")


def sentence(found: Found, names: Names, of_ns: int) -> str:
    """It, with its share of `of_ns`."""
    error = f" ± {percent(found.error_ns, of_ns)}" if found.error_ns else ""
    of = f" of {whose(found.of, names)}" if found.of else ""
    much = f"{percent(found.share(of_ns), 1)}{error} of the time{of}, {duration(found.ns)}"
    own = names.at(found.own, names.line(found))
    if found.rule in ("computes", "imports"):
        return _computes(found, names, own, much)
    if found.rule == "awaits":
        return (
            f"{own} awaits {names.of_library(found.called) if found.called >= 0 else 'futures and other tasks'} {much}{_asks(found)}{_times(found)}."
        )
    if found.rule == "cores":
        return f"Threads wait {much}, for a core{_most(found, own)}{_had_by(found)}."
    if found.rule == "cpu-quota":
        by = f", mostly by {names.at(found.other)}" if found.other >= 0 else ""
        return f"Threads wait {much}, for a CPU quota{_most(found, own)}: their control group has used it up{by}."
    if found.rule == "gil":
        return f"Threads wait {much}, for the GIL{_most(found, own)}{_holder(found, names)}."
    if found.rule == "many-calls":
        times = f"{found.each:,.0f} times in each of its calls, {found.waits:,} times in all"
        return f"{own} calls {names.name(found.called)} {times}, and waits {much}, for {clean(found.resource)}{_asks(found)}: many small calls in place of a few."
    if found.rule == "event-loop":
        return f"{own} holds the event loop {much}: meanwhile it {_verb(found.held)} {_why(found, names)}{_times(found)}."
    if found.rule == "lock-held":
        had = f"{_releaser(found, names)} has{_for_how_much(found.meanwhile)} while it {_doing(found.meanwhile)}"
        return f"{own} waits {much}{_in(found, names)}, for a lock that {had}{_times(found)}."
    if found.rule == "pool":
        return f"{own} waits {much}, for {_of_pool(found, names)}{_times(found)}."
    if found.rule == "thread-pool" and found.pool:
        return f"{own} waits {much}, in {names.of_library(found.primitive)}{_times(found)}. {_full(found.pool, names)}"
    if found.rule == "sleep":
        return f"{own} sleeps {much}{_after(found)}{_times(found)}."
    inside = "" if found.rule == "queue" else _in(found, names)
    return f"{own} waits {much}{inside}, {_why(found, names)}{_times(found)}."


def _in(found: Found, names: Names) -> str:
    """Of a library's function that own code called, and waits in."""
    return f", in {names.of_library(found.called)}" if found.called >= 0 else ""


def _after(found: Found) -> str:
    """What had failed before it."""
    if not found.failing:
        return ""
    asked, times, unconnected = found.failing
    return f", after `{_shortened(clean(asked))}` {'could not connect' if unconnected else 'failed'} {plural(times, 'time')}"


def _of_pool(found: Found, names: Names) -> str:
    """What of which pool, and who had it."""
    pool = found.short
    out = f"of {pool.size}, all out" if pool.out >= pool.size - _HALF_ONE else f"of which at most {pool.size} were out"
    had = ""
    if pool.func_id >= 0:
        share = "" if pool.share >= _ALL else f" for {percent(pool.share, 1)} of that time"
        had = f", had by {names.at(pool.func_id, pool.line if pool.line > 0 else None)}{share}"
    return f"a connection of a {clean(pool.library)} {out}{had}"


def idle(only: int, several: int, ns: int) -> str:
    """Of threads that wait for work: how many do `only` that, of how many that do."""
    if not several:
        return f"Left out: {duration(ns)} in which threads had nothing to do."
    if not only:
        return f"Left out: {duration(ns)} in which {plural(several, 'thread')} had nothing to do."
    rest = f", and {several - only:,} more at times" if several > only else ""
    return f"Left out: {duration(ns)} in which {plural(only, 'thread')} only waited for work{rest}."


def _computes(found: Found, names: Names, own: str, much: str) -> str:
    if found.rule == "imports":
        return f"Imports compute {much}{_most(found, own)}."
    most = f", most of it in {names.of_library(found.called)}" if found.called >= 0 else ""
    return f"{own} computes {much}{most}{', on the thread of an event loop' if found.on_loop else ''}."


def _most(found: Found, own: str) -> str:
    return f", {'all of it' if found.whole_in_own >= _ALL else 'most of it' if found.whole_in_own >= _MOSTLY else 'above all'} in {own}"


def _had_by(found: Found) -> str:
    if not found.meanwhile:
        return ""
    if found.meanwhile["ours"] >= _MOSTLY:
        return ": other threads of the program have them"
    name = f", mostly {clean(found.meanwhile['name'])}" if found.meanwhile["name"] else ""
    return f": other programs have them{name}"


def _holder(found: Found, names: Names) -> str:
    if found.other == NOBODY:
        return ", which nobody has: it is handed over"
    if found.other < 0:
        return ""
    how_much = "meanwhile" if found.other_share >= _MOSTLY else f"{percent(found.other_share, 1)} of that"
    return f": {names.at(found.other)}{', in another thread,' if found.other == found.own else ''} has it {how_much}"


def _full(pool: FullPool, names: Names) -> str:
    busy = f", mostly in {names.at(pool.own)}" if pool.own >= 0 else ""
    return f"The pool's {plural(pool.threads, 'thread')} always {'has' if pool.threads == 1 else 'have'} work{busy}."


def _verb(rule: str) -> str:
    return "is" if rule == "sleep" else "waits"


def _why(found: Found, names: Names) -> str:
    """How the sentence of a wait goes on after its verb."""
    until = ""
    if found.rule == "queue" or found.held == "queue":
        until = f", which {names.at(found.other)} ends" if found.other >= 0 else ""
    elif found.other >= 0:
        until = f" that {_releaser(found, names)} releases"
    what = clean(found.resource) if found.resource else "files"
    said = f"for {clean(found.resource)}" if found.resource else f"({found.kind})"
    said += f" in {found.syscall}" if found.syscall else ""
    said_of_it = found.words.format(
        what=what,
        syscall=found.syscall or found.kind,
        primitive=names.of_library(found.primitive).strip("`"),
        until=until,
        of=f" ({clean(found.resource).removeprefix('child ')})" if found.resource else "",
        said=said,
    )
    return said_of_it + _asks(found)


def _asks(found: Found) -> str:
    return f", mostly for `{_shortened(clean(found.asked))}`" if found.asked else ""


def _shortened(statement: str) -> str:
    return statement if len(statement) <= _LONGEST else f"{statement[: _LONGEST - 3]}..."


def _releaser(found: Found, names: Names) -> str:
    return f"{names.at(found.other)}{', in another thread,' if found.other == found.own else ''}"


def _for_how_much(meanwhile: Mapping[str, Any]) -> str:
    """Of the time that a lock is had, where that is not most."""
    share = meanwhile["share"]
    return "" if share >= _MOSTLY else f", {percent(share, 1)} of that time"


def _doing(meanwhile: Mapping[str, Any]) -> str:
    if meanwhile["kind"] == "sleep":
        return "sleeps"
    call = f" ({meanwhile['syscall']})" if meanwhile["syscall"] else ""
    return f"waits for {clean(meanwhile['resource'])}{call}" if meanwhile["resource"] else f"waits{call or ' for ' + str(meanwhile['kind'])}"


def _times(found: Found) -> str:
    return f": {found.waits:,} times, {duration(found.ns / found.waits)} each" if found.waits >= _SEVERAL else ""
