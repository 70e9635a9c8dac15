"""Engines that go over one trace at the same time, each with some of its threads: as many cores are used. What they find is what one would."""

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.rebuild.answers import Answers, Library
from pytrace_ebpf.rebuild.engine import Engine, Ids
from pytrace_ebpf.rebuild.library import SPENT

_BEHIND = 8  # batches that an engine may be behind another

Ints: TypeAlias = npt.NDArray[np.int64]
Made: TypeAlias = Callable[[Engine], object]


class Shards:
    """As Engine, but for rows of all calls, edges and windows: those need the order of one."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        """`engines` have the same settings, and have taken nothing yet."""
        self.engines = engines
        for number, engine in enumerate(engines):
            engine.shard(number, len(engines))
        self._pool = ThreadPoolExecutor(len(engines), "engine")

    def _each(self, do: Callable[[Engine], Any]) -> list[Any]:
        return list(self._pool.map(do, self.engines)) if len(self.engines) > 1 else [do(self.engines[0])]

    def switches(self, sched: pa.Table, end_ns: int) -> None:
        """As of an Engine."""
        self._each(lambda engine: engine.switches(sched, end_ns))

    def cputimes(self, cputime: pa.Table, start_ns: int, end_ns: int) -> None:
        """As of an Engine."""
        self._each(lambda engine: engine.cputimes(cputime, start_ns, end_ns))

    def want_rows_of(self, functions: Ids, suspended: bool, never: Ids) -> None:
        """As of an Engine."""
        for engine in self.engines:
            engine.want_rows_of(functions, suspended, never)

    def open_calls(self) -> Ints:
        """As of an Engine."""
        return np.concatenate([engine.open_calls() for engine in self.engines])

    def take(self, batches: Iterable[pa.Table], end_ns: int, piece: int, made: Made | None = None) -> None:
        """Have all rows of schema.EVENTS of the segment that ends at end_ns taken; `piece` as of Engine.take().

        `made` is called with an engine that has made rows of calls, while they are there, by the thread that it runs on.
        """
        if len(self.engines) == 1:
            _take(self.engines[0], iter(batches), end_ns, piece, made)
            return
        waiting: list[queue.Queue[pa.Table | None]] = [queue.Queue(_BEHIND) for _ in self.engines]
        taken: list[Future[None]] = [
            self._pool.submit(_take, engine, iter(own.get, None), end_ns, piece, made) for engine, own in zip(self.engines, waiting, strict=True)
        ]
        try:
            for batch in batches:
                for own in waiting:
                    own.put(batch)
        finally:
            for own in waiting:
                own.put(None)
        for each in taken:
            each.result()

    def finish(self, end_ns: int, made: Made | None = None) -> None:
        """As of an Engine; `made` as of take()."""
        for engine, count in zip(self.engines, self._each(lambda engine: engine.finish(end_ns)), strict=True):
            if count and made:
                made(engine)

    def save(self) -> bytes:
        """The state between two segments, for Engine.load()."""
        return b"".join(self._each(Engine.save))

    def load(self, state: bytes) -> None:
        """As of an Engine; the state may be that of other shards."""
        self._each(lambda engine: engine.load(state))

    def ask(self, key: Ints, ts: Ints, library: Library, known: Answers | None = None) -> Callable[[], Answers]:
        """As of an Engine; what this returns gives what is known at the time."""
        found = [engine.ask(key, ts, library, known) for engine in self.engines]
        return lambda: Answers(*(np.maximum.reduce(each) for each in zip(*found, strict=True)))

    def settle(self, ns: int) -> None:
        """As of an Engine."""
        self._each(lambda engine: engine.settle(ns))

    @property
    def met_unknown(self) -> bool:
        """As of an Engine."""
        return any(engine.met_unknown for engine in self.engines)

    def new_tree(self) -> None:
        """As of an Engine."""
        self._each(Engine.new_tree)

    def add_to(self, tree: Engine) -> None:
        """Add the trees so far, and their call sites, to another engine's."""
        for engine in self.engines:
            tree.merge(engine.packed(), engine.keys())
            tree.merge_sites(engine.sites())

    def sums(self, tree: Engine) -> tuple[npt.NDArray[np.void], Ints, npt.NDArray[np.void]]:
        """packed(), keys() and sites() of all engines as of one; `tree`: an empty one, in which those of several are added up."""
        if len(self.engines) == 1:
            tree = self.engines[0]
        else:
            self.add_to(tree)
        return tree.packed(), tree.keys(), tree.sites()

    def spent(self) -> tuple[dict[str, npt.NDArray[Any]], Ints]:
        """As of an Engine, with the thread (pid << 32 | tid) of each place; -1 also of a thread that another engine has, at another place."""
        each, keys = [engine.spent() for engine in self.engines], [engine.keys() for engine in self.engines]
        return {name: np.concatenate([own[name] for own in each]) for name in (*SPENT, "known")}, np.concatenate(keys)


def _take(engine: Engine, batches: Iterator[pa.Table], end_ns: int, piece: int, made: Made | None) -> None:
    try:
        for count in engine.take(batches, end_ns, piece):
            if count and made:
                made(engine)
    finally:
        for _ in batches:  # the thread that hands them over must not block for ever
            pass
