"""Go over a trace once for all that is asked of it: the engines (rebuild/) take its segments in turn, and each sink takes what they find.

Memory is bounded by a segment, by some segments of switches, by the calls that are open, and by what each sink says.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from pytrace_ebpf.derive.calls import rows as call_rows
from pytrace_ebpf.derive.feed import engine_of, segments, shards_of
from pytrace_ebpf.derive.read_ahead import PIECE, sched_groups
from pytrace_ebpf.derive.scheduling.off_core import SCHED
from pytrace_ebpf.derive.sink import AgainError, Needs, Sink
from pytrace_ebpf.derive.store import NO_STATE, Growing, Growth
from pytrace_ebpf.derive.sums import keepers, within
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.derived import Settled
from pytrace_ebpf.trace.reader import Trace

_AT_ONCE = 1 << 17  # switches of as many segments as have them: what is done for each open wait is not done for each segment


def run(trace: Trace, *sinks: Sink) -> None:
    """Go over a trace or a window of it for `sinks`, of which nothing is kept, in as few passes as can be."""
    for own in _groups(sinks):
        _of_group(trace, own)


def run_kept(trace: Trace, sinks: Sequence[Sink], beside: Sequence[Sink] = ()) -> dict[str, Settled | None]:
    """Make the tables of `sinks` for a whole trace, each from where an earlier derivation has settled it; what each settles now, by name.

    Those that begin at the first segment share passes. `beside`: what goes along with these where it can, and is not made else.
    """
    growths = {sink: Growth(trace, sink.table, sink.into, sink.parts) for sink in sinks if sink.table and not sink.idle}
    anew = [sink for sink, growth in growths.items() if not _went_on(trace, sink, growth)]
    for own in _groups(anew):
        _of_group(trace, own, {sink: growths[sink] for sink in own}, beside)
    return {sink.table.name: growth.settled for sink, growth in growths.items() if sink.table}


def run_grown(trace: Trace, sink: Sink, growth: Growing) -> None:
    """Go over a whole trace for one sink, from where `growth` begins."""
    if not _went_on(trace, sink, growth):
        _of_group(trace, [sink], {sink: growth})


def _went_on(trace: Trace, sink: Sink, growth: Growing) -> bool:
    """Go on from what is settled of a table; False where nothing is, or not any more."""
    if not growth.first:
        return False
    engines = _fresh(trace, sink.needs(), [sink])
    try:
        sink.begin(engines, growth.first, growth.resume(engines))
    except NO_STATE:
        growth.refuse()
        return False
    try:
        _Pass(trace, [sink], engines, {sink: growth}).over(growth.first, None)
    except AgainError:
        growth.refuse()
        return False
    return True


def _of_group(trace: Trace, sinks: Sequence[Sink], growths: Mapping[Sink, Growing] | None = None, beside: Sequence[Sink] = ()) -> None:
    """Go over it from the beginning for sinks that share a pass."""
    more, growths = list(sinks), growths or {}
    for sink in beside:
        if _share([*more, sink]):
            more.append(sink)
    needs = _needs(more)
    if growths and needs and needs.sums and not needs.nodes:
        more += keepers(trace)
    try:
        _begin(trace, more, growths)
    except AgainError:
        for growth in growths.values():
            growth.refuse()
        _begin(trace, sinks, growths)


def _begin(trace: Trace, sinks: Sequence[Sink], growths: Mapping[Sink, Growing]) -> None:
    needs, first, last = _needs(sinks), 0, None
    assert needs
    if trace.whole is trace:
        engines = _fresh(trace, needs, sinks)
    else:
        engine, first, last = within(trace, rows=needs.rows or needs.rows_of is not None, nodes=needs.nodes, anew=needs.lines)
        engines = Shards([engine])
        for sink in sinks:
            sink.prepare(engines)
    for sink in sinks:
        sink.begin(engines, first, None)
    _Pass(trace, sinks, engines, growths).over(first, last)


def _fresh(trace: Trace, needs: Needs, sinks: Sequence[Sink]) -> Shards:
    """Engines of a whole trace that have taken nothing yet."""
    rows = needs.rows or needs.rows_of is not None
    if needs.rows or needs.one_engine:
        engines = Shards([engine_of(trace, rows=rows, nodes=needs.nodes)])
    else:
        engines = shards_of(trace, nodes=needs.nodes, rows=rows)
    for sink in sinks:
        sink.prepare(engines)
    return engines


def _needs(sinks: Sequence[Sink]) -> Needs | None:
    """What all of them need; None where no engines can serve all."""
    needs: Needs | None = sinks[0].needs()
    for sink in sinks[1:]:
        needs = needs and needs.with_(sink.needs())
    return needs


def _share(sinks: Sequence[Sink]) -> bool:
    """Whether one pass can serve them."""
    needs = _needs(sinks)
    return needs is not None and not (needs.alone and len(sinks) > 1)


def _groups(sinks: Sequence[Sink]) -> list[list[Sink]]:
    """Those that share a pass; none of what has nothing to be made of."""
    groups = list[list[Sink]]()
    for sink in sinks:
        if sink.idle:
            continue
        group = next((own for own in groups if _share([*own, sink])), None)
        if group is None:
            groups.append([sink])
        else:
            group.append(sink)
    return groups


class _Pass:
    """`sinks`, which have begun with `engines`; `growths`: of those that write a table of a whole trace."""

    def __init__(self, trace: Trace, sinks: Sequence[Sink], engines: Shards, growths: Mapping[Sink, Growing]) -> None:
        self._trace, self._sinks, self._engines, self._growths = trace, sinks, engines, growths
        needs = _needs(sinks)
        assert needs
        self._needs = needs
        if needs.rows_of and not needs.rows:
            engines.want_rows_of(needs.rows_of.functions, needs.rows_of.suspended, needs.rows_of.never)

    def over(self, first: int, last: int | None) -> None:
        """Take the segments of the whole trace from the `first` on, up to before the `last`."""
        whole, engines, sinks = self._trace.whole, self._engines, self._sinks
        ends_ns = [segment["end_ns"] for segment in whole.segments]
        made = self._made if self._needs.rows or self._needs.rows_of else None
        for at, upto, switches in self._groups(first, last):
            if switches is not None:
                for sink in sinks:
                    sink.scheduled(at, switches, ends_ns[at:upto])
            for place, (events, end_ns) in enumerate(segments(whole, engines, at, upto, switches), at):
                for sink in sinks:
                    events = sink.events(place, switches[place - at] if switches else None, events)
                engines.take(events, end_ns, PIECE, made)
                for sink in sinks:
                    sink.taken(place)
                if place + 1 == upto:
                    for sink in sinks:
                        sink.grouped(place)
                for sink, growth in self._growths.items():
                    if growth.due(place + 1):
                        growth.settle(engines, sink.state())
        engines.finish(self._trace.end_ns, made)
        for sink in sinks:
            sink.end()

    def _made(self, engine: Engine) -> None:
        rows = call_rows.table(engine.rows(), self._trace.throttling)
        for sink in self._sinks:
            sink.rows(engine, rows)

    def _groups(self, first: int, last: int | None) -> Iterator[tuple[int, int, list[pa.Table] | None]]:
        """Segments that are taken together: from which place, up to before which, and their switches, where these are needed."""
        chosen = self._trace.whole.segments[first:last]
        if self._needs.switches:
            for place, switches in sched_groups(self._trace.whole, chosen, SCHED, _AT_ONCE):
                yield first + place, first + place + len(switches), switches
        elif chosen:
            yield first, first + len(chosen), None
