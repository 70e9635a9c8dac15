"""The sums of a trace's calls in one pass, from the state that is kept last: the calling-context tree, and each thread's time.

Where a recording has dropped its first segments since, the states that follow are made those of the new beginning, without their segments.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.derive.checkpoints import Checkpoint, Checkpoints
from pytrace_ebpf.derive.feed import engine_of, has_only_cputime, segments, shards_of
from pytrace_ebpf.derive.read_ahead import PIECE
from pytrace_ebpf.derive.sink import Needs, Sink
from pytrace_ebpf.derive.store import State
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.shards import Shards
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.window import Window

MOST_NODES = 1 << 20  # 180 bytes each while the tree grows
BYTES_AN_EVENT = 1.0  # at most, of what is kept: the states of deep stacks are large

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sums:
    """`nodes` (rebuild.library.NODE) of the tree, whose threads are `keys` (pid << 32 | tid), and its calls' `sites` (SITE); `spent` (Engine.spent) of the threads `spenders`."""

    nodes: npt.NDArray[np.void]
    keys: Ints
    sites: npt.NDArray[np.void]
    spent: dict[str, npt.NDArray[Any]]
    spenders: Ints


def sums_of(trace: Trace, most: int = MOST_NODES) -> Sums:
    """The sums of a trace or of a window of it. Of the whole, states are kept on the way, and what they say is not derived again."""
    if most == MOST_NODES and trace.whole is trace:
        engines, tree = _advance(trace, len(trace.segments))
        engines.finish(trace.end_ns)
        engines.add_to(tree)
        spent = engines.spent()
        del engines  # of a large tree each copy counts
        return Sums(tree.nodes(), tree.keys(), tree.sites(), *spent)
    engine, parts = begun(trace, rows=False, nodes=most)
    for events, end_ns in parts:
        for _ in engine.take(events, end_ns, PIECE):
            pass
    engine.finish(trace.end_ns)
    return Sums(engine.nodes(), engine.keys(), engine.sites(), engine.spent(), engine.keys())


def begun(trace: Trace, *, rows: bool, nodes: int = 0) -> tuple[Engine, Iterator[tuple[Iterator[pa.Table], int]]]:
    """An engine, and what it is to take (passes.segments): of a window from the kept state that is nearest, and only what lies within counts.

    `rows`, `nodes`: as of Engine.
    """
    engine, first, last = within(trace, rows=rows, nodes=nodes)
    return engine, segments(trace.whole, engine, first, last)


def within(trace: Trace, *, rows: bool, nodes: int = 0, anew: bool = False) -> tuple[Engine, int, int | None]:
    """The engine of begun(), and the segments of the whole that it is to take: from which place on, and up to before which one.

    `anew`: from the first on, as no state is kept that it could go on from.
    """
    engine, first = (engine_of(trace.whole, rows=rows, nodes=nodes), 0) if anew else at_start(trace, rows=rows, nodes=nodes)
    whole, last = trace.whole, None
    if isinstance(trace, Window):
        start_ns = trace.start_ns if trace.start_ns > whole.start_ns else None
        end_ns, last = (trace.end_ns, trace.last) if trace.end_ns < whole.end_ns else (None, None)
        engine.window(start_ns, end_ns, trace.pid, trace.tid)
    return engine, first, last


def at_start(trace: Trace, *, rows: bool = False, nodes: int = 0) -> tuple[Engine, int]:
    """An engine in the state that is nearest to where a window begins, and how many segments of the whole lie before that."""
    whole, first = trace.whole, 0
    engine = engine_of(whole, rows=rows, nodes=nodes)
    if isinstance(trace, Window) and trace.start_ns > whole.start_ns:
        first, saved = _reach(whole, trace.first)
        try:
            if saved is not None:
                engine.load(saved)
        except TraceError:
            first, engine = 0, engine_of(whole, rows=rows, nodes=nodes)
    return engine, first


def _reach(trace: Trace, upto: int) -> tuple[int, bytes | None]:
    """After how many segments, at most `upto`, a state is, and that; those up to there are derived and kept, if they are not yet."""
    kept = Checkpoints(trace)
    if kept.reach >= upto or not upto:
        return kept.nearest(upto)
    engines, _ = _advance(trace, upto)
    return upto, engines.save()


def _advance(trace: Trace, upto: int) -> tuple[Shards, Engine]:
    """Engines that have taken the first `upto` segments, and one that has the tree of the calls that ended in them."""
    kept = Checkpoints(trace)
    try:
        engines, tree, done = _resumed(trace, kept, upto)
    except TraceError:  # the library refuses what is kept
        kept.forget()
        engines, tree, done = _resumed(trace, kept, upto)
    try:
        engines, done = _take_over(trace, kept, engines, range(done, upto), tree)
    except _RefusedError:
        kept.done_with_earlier()
        engines, tree, done = _resumed(trace, kept, upto)
    _go_on(trace, kept, engines, range(done, upto), tree, at_end=True)
    engines.add_to(tree)
    engines.new_tree()
    return engines, tree


def keep_up(trace: Trace) -> None:
    """Keep states of a trace that is being recorded, as far as it goes, so that a later report need not derive its sums.

    The cost is that of the segments that came since the last time and, where old ones were dropped since, of the states that are kept.
    """
    kept, upto = Checkpoints(trace), len(trace.segments)
    done, saved = kept.nearest(upto)
    if kept.writable and done < upto:
        engines = shards_of(trace, nodes=MOST_NODES, most=1)
        if saved is not None:
            engines.load(saved)
        try:
            engines, done = _take_over(trace, kept, engines, range(done, upto), None)
        except _RefusedError:
            kept.done_with_earlier()
            return
        _go_on(trace, kept, engines, range(done, upto), None, at_end=False)


def _take_over(trace: Trace, kept: Checkpoints, engines: Shards, places: range, tree: Engine | None) -> tuple[Shards, int]:
    """Make states from before the trace lost its beginning its own, as far as they go; `engines` are at the first of `places`.

    Returns engines after those, and how many segments these have taken. Segments are read up to where a state is, and where
    a state does not follow from the new beginning (rebuild/rebase.c); `tree` as of _go_on(). Raises _RefusedError for what is no state.
    """
    done, earlier = places.start, kept.earlier()
    if earlier is None or not len(places) or has_only_cputime(trace):
        return engines, done
    fresh, before, after = None, *(engine_of(trace, rows=False) for _ in range(2))
    while done < places.stop:
        step = earlier.following(done)
        if step and step[-1] <= places.stop:
            if fresh is None:
                fresh = engine_of(trace, rows=False, nodes=MOST_NODES)
                fresh.load(engines.save())
            if _rebased(fresh, before, after, *step[:2]):
                _keep(kept, step[2] - 1, Checkpoint(fresh.packed(), fresh.keys(), fresh.sites(), fresh.save()), tree)
                fresh.new_tree()
                done = step[2]
                continue
        count = earlier.ahead(done)
        if count is None or count > places.stop:
            break
        engines, fresh = _as_shards(trace, engines, fresh), None
        if not _go_on(trace, kept, engines, range(done, count), tree, at_end=True):
            return engines, count
        done = count
    if earlier.ahead(done) is None:
        kept.done_with_earlier()
    return _as_shards(trace, engines, fresh), done


class _RefusedError(Exception):
    """The library refuses what is kept, and the engine that was to go on from it is of no further use."""


def _rebased(fresh: Engine, before: Engine, after: Engine, was: Checkpoint, then: Checkpoint) -> bool:
    """Bring `fresh` from one state to the next, with its sums, by two engines that hold them; False: it stays. Raises _RefusedError."""
    try:
        before.hold(was.saved)
        after.hold(then.saved)
        done = fresh.rebase(before, after)
        if done:
            _merge(fresh, then)
    except TraceError as error:
        raise _RefusedError from error
    return done


def _as_shards(trace: Trace, engines: Shards, fresh: Engine | None) -> Shards:
    if fresh is None:
        return engines
    again = shards_of(trace, nodes=MOST_NODES, most=len(engines.engines))
    again.load(fresh.save())
    return again


def _keep(kept: Checkpoints, last: int, state: Checkpoint, tree: Engine | None) -> None:
    if tree:
        _merge(tree, state)
    kept.keep(last, state)


def _go_on(trace: Trace, kept: Checkpoints, engines: Shards, places: range, tree: Engine | None, *, at_end: bool) -> bool:
    """Have `engines` take some segments and keep states on the way, and one `at_end`; `tree` gets the sums that are kept. Returns whether the last was."""
    keeper = Keeper(trace, kept, tree)
    keeper.begin(engines, places.start, None)
    for place, (events, end_ns) in zip(places, segments(trace, engines, places.start, places.stop), strict=True):
        engines.take(events, end_ns, PIECE)
        keeper.took(place, at_end and place + 1 == places.stop)
    return keeper.keeps


class Keeper(Sink):
    """Keeps states of engines that make a tree while they go over a trace, whatever else they are asked for."""

    def __init__(self, trace: Trace, kept: Checkpoints, tree: Engine | None = None) -> None:
        """`tree` gets the sums that are kept."""
        super().__init__(trace)
        self._kept, self._tree = kept, tree
        self.keeps, self._complete = kept.writable, trace.manifest["state"] == "complete"
        self._rows = 0

    def needs(self) -> Needs:
        return Needs(nodes=MOST_NODES)

    def begin(self, engines: Shards, first: int, state: State | None) -> None:
        self._engines = engines

    def taken(self, place: int) -> None:
        self.took(place, place + 1 == len(self.segments))

    def took(self, place: int, last: bool) -> None:
        """The engines have taken the segment `place`; `last`: a state is to be kept in any case, as none will be later."""
        kept, engines = self._kept, self._engines
        if place < kept.reach:  # what is kept needs no other
            if place + 1 == kept.reach:
                engines.new_tree()
            return
        self._rows += self.segments[place]["rows"].get("events", 0)
        # Of a trace that still grows names may come late, and the sample that follows is not there yet.
        at_end = place + 1 == len(self.segments)
        self.keeps = self.keeps and (self._complete or not (engines.met_unknown or (has_only_cputime(self.trace) and at_end)))
        if self.keeps and (self._rows * BYTES_AN_EVENT >= kept.size or last):
            state = Checkpoint(*engines.sums(_empty_tree(self.trace)), engines.save())
            engines.new_tree()  # first, as of a large tree each copy counts
            _keep(kept, place, state, self._tree)
            self._rows = 0


def keepers(trace: Trace) -> Iterator[Keeper]:
    """What keeps the sums in a pass over a whole trace that is made for something else; none where they are kept, or cannot be."""
    if trace.whole is trace and trace.manifest["state"] == "complete" and trace.segments:
        kept = Checkpoints(trace)
        if kept.writable and kept.reach < len(trace.segments):
            yield Keeper(trace, kept)


def _merge(tree: Engine, checkpoint: Checkpoint) -> None:
    tree.merge(checkpoint.nodes, checkpoint.keys)
    tree.merge_sites(checkpoint.sites)


def _empty_tree(trace: Trace) -> Engine:
    return Engine(trace.start_ns, by_cputime=False, rows=False, nodes=MOST_NODES)


def _resumed(trace: Trace, kept: Checkpoints, upto: int) -> tuple[Shards, Engine, int]:
    """Engines as of _advance(), as far as the states go that are kept, and how many segments these are."""
    engines, tree = shards_of(trace, nodes=MOST_NODES), _empty_tree(trace)
    saved, done = None, 0
    for count, checkpoint in kept.upto(upto):
        _merge(tree, checkpoint)
        saved, done = checkpoint.saved, count
    if saved is not None:
        engines.load(saved)
    return engines, tree, done
