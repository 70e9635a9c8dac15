"""The rows of a trace's segments in the order in which an engine takes them, read and checked by a thread of their own, or by several."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa

from pytrace_ebpf.trace.reader import Trace

PIECE = 1 << 18  # events that are read and rebuilt at once
_BUNCH = 1 << 14  # rows of short segments that are read and handed over at once
_AHEAD = 4  # bunches that are read while another is rebuilt

_Item = TypeVar("_Item")
_Given = TypeVar("_Given")
Segments = Sequence[dict[str, Any]]


def bunches_of(
    trace: Trace, chosen: Segments, following: Segments, by_cputime: bool, sched: Sequence[pa.Table] | None
) -> Iterator[list[pa.Table | None]]:
    """Of each of the `chosen` segments its scheduling, the batches of its events, and None, some at a time.

    Scheduling: its switches, which somebody may have read already, `sched`; or its CPU time and that of the segment that follows,
    as a curve needs the next sample: the `following` ones are those from the second on.
    """
    at = 0
    for some in _short_ones(chosen):
        upto = at + len(some)
        if by_cputime:
            pairs = zip(some, [*following[at:upto], None], strict=False)
            scheduling = [pa.concat_tables([trace.part("cputime", s["index"]) for s in pair if s]) for pair in pairs]
        else:
            scheduling = trace.parts("sched", some) if sched is None else list(sched[at:upto])
        if len(some) > 1:
            yield list(chain.from_iterable([own, events, None] for own, events in zip(scheduling, trace.parts("events", some), strict=True)))
        else:
            yield scheduling
            yield from ([batch] for batch in trace.batches("events", some[0]["index"], PIECE))
            yield [None]
        at = upto


def sched_groups(trace: Trace, segments: Segments, columns: Sequence[str], most: int) -> Iterator[tuple[int, list[pa.Table]]]:
    """Segments that follow each other, with `most` rows of scheduling or a little more: the place of the first, and of each these columns."""

    def read() -> Iterator[tuple[int, list[pa.Table]]]:
        first, group, rows = 0, list[pa.Table](), 0
        for sched in chain.from_iterable(trace.parts("sched", some, columns) for some in _short_ones(segments)):
            group.append(sched)
            rows += len(sched)
            if rows >= most:
                yield first, group
                first, group, rows = first + len(group), [], 0
        if group:
            yield first, group

    return ahead(read(), 1)


def _short_ones(segments: Segments) -> Iterator[list[dict[str, Any]]]:
    """Segments that follow each other, with _BUNCH rows at most; a longer one by itself."""
    some, rows = list[dict[str, Any]](), 0
    for segment in segments:
        own = segment["rows"].get("events", 0) + segment["rows"].get("sched", 0)
        if some and rows + own > _BUNCH:
            yield some
            some, rows = [], 0
        some.append(segment)
        rows += own
    if some:
        yield some


def each_of(do: Callable[[_Given], _Item], items: Iterable[_Given]) -> Iterator[_Item]:
    """do(item) of each, in their order, by as many threads as there are cores: as many are done or at work at once, and another each."""
    waiting, count = deque[Future[_Item]](), cores()
    with ThreadPoolExecutor(count, "each") as pool:
        for item in items:
            waiting.append(pool.submit(do, item))
            if len(waiting) > 2 * count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ahead(items: Iterator[_Item], most: int = _AHEAD) -> Generator[_Item, None, None]:
    """The same, read and checked by another thread meanwhile, at most so many ahead: where there is a second core, it is used."""
    waiting: queue.Queue[Any] = queue.Queue(most)
    left, end = threading.Event(), object()

    def put(item: object) -> bool:
        while not left.is_set():
            with suppress(queue.Full):
                waiting.put(item, timeout=0.1)
                return True
        return False

    def read() -> None:
        try:
            if all(map(put, items)):
                put(end)
        except BaseException as error:  # raised where the batches are taken
            put(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while (item := waiting.get()) is not end:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()
        reader.join()
