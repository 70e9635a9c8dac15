"""Rebuild the calls of a trace: give the library a segment's scheduling and events, take rows or a tree from it."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from ctypes import c_bool, c_void_p
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pytrace_ebpf.errors import HostError, PytraceError, TraceError
from pytrace_ebpf.processors import engines_numbers
from pytrace_ebpf.rebuild.answers import Answers, Library
from pytrace_ebpf.rebuild.library import (
    CHARGES,
    EDGE,
    MEANWHILE,
    NO_ANSWER,
    NODE,
    ON_CORE,
    SITE,
    SPENT,
    SUMS,
    Busy,
    CpuTimes,
    Events,
    Switches,
    columns,
    library,
    view,
)
from pytrace_ebpf.trace.conditions import Wanted

_ERRORS: dict[int, tuple[type[PytraceError], str]] = {
    1: (HostError, "there is not enough memory for the calls that are open at once in this trace"),
    2: (TraceError, "the trace holds events of a kind that this version does not know: read it with the version that recorded it"),
    3: (TraceError, "the trace contradicts itself: record it again"),
}

Ints: TypeAlias = npt.NDArray[np.int64]
Ids: TypeAlias = npt.NDArray[np.integer[Any]]
_ROWS, _NO_ROWS = 1, 2  # threads.h
_NO_FUNCTIONS: Ids = np.zeros(0, np.int64)
_BEGINNING, _NEVER = -(1 << 63), (1 << 63) - 1


CHARGE = np.dtype([("key", "i8"), ("ts", "i8"), ("amount", "i8"), ("since", "i8"), ("what", "u1")])
"""An amount that is charged to a call: of which thread (pid << 32 | tid), when, how much of what; GONE_SINCE: since when."""


class Engine:
    """The library's engine: threads, what is known of their scheduling, and their open calls.

    For each segment in turn: switches() or cputimes(), then all of take(); in the end finish().
    """

    def __init__(self, start_ns: int, *, by_cputime: bool, rows: bool, nodes: int = 0, machine: str = "") -> None:
        """When recording began; `by_cputime`: of scheduling there is only CPU time; `machine`: what `uname -m` said there.

        `rows`: make rows of calls. `nodes`: make a tree, and beyond so many nodes none but by function; 0: none.
        """
        self._library = library()
        self._by_cputime, self._machine = by_cputime, machine
        self._engine = self._library.open(start_ns, by_cputime, rows, nodes)
        if not self._engine:
            raise _error(1)

    def __del__(self) -> None:
        if getattr(self, "_engine", None):
            self._library.close(self._engine)

    def _check(self, fine: bool) -> None:
        if not fine:
            raise _error(self._library.error(self._engine))

    def losses(self, calls: Ints, sched: Ints) -> None:
        """When function events, and when scheduling events were lost: arrays (n, 2) of [start, end], disjoint, in the order of time."""
        calls, sched = (np.ascontiguousarray(windows, np.int64) for windows in (calls, sched))
        self._check(self._library.losses(self._engine, calls.ctypes.data, len(calls), sched.ctypes.data, len(sched)))

    def unseen(self, rows: Ints) -> None:
        """What was not reported: an array (n, 4), pid << 32 | tid, since when and up to when, and the kind of event that showed it, in this order."""
        rows = np.ascontiguousarray(rows, np.int64)
        self._check(self._library.unseen(self._engine, rows.ctypes.data, len(rows)))

    def functions(self, layer: npt.NDArray[np.int32], module: npt.NDArray[np.int32]) -> None:
        """The number of each function's layer (schema.LAYERS) and of its module, by func_id. Has to be called, also with no function."""
        layer, module = (np.ascontiguousarray(numbers, np.int32) for numbers in (layer, module))
        modules, self._functions = int(module.max(initial=-1)) + 1, len(layer)
        self._check(self._library.functions(self._engine, layer.ctypes.data, module.ctypes.data, len(layer), modules))

    def has_call_lines(self) -> None:
        """The lines of entries are those that their callers called from. To be called before anything is taken."""
        self._library.has_call_lines(self._engine)

    def want_rows_of(self, functions: Ids, suspended: bool, never: Ids = _NO_FUNCTIONS) -> None:
        """Make rows of the calls of these functions (func_id) alone; `suspended`: and of calls that yielded or were resumed, but for those of the
        functions `never`. Before anything is taken.

        Of the others the engine makes sums, as fast as it does without rows; rows come in another order then.
        """
        every = np.arange(self._functions)
        mask = np.where(np.isin(every, functions), _ROWS, np.where(np.isin(every, never), _NO_ROWS, 0)).astype(np.uint8)
        self._check(self._library.want_rows_of(self._engine, mask.ctypes.data, suspended))

    def processes(self, pid: Any, start_ns: Any, gil_start: Any, gil_end: Any) -> None:
        """Columns of schema.PROCESSES."""
        arrays: list[npt.NDArray[Any]] = [
            np.ascontiguousarray(pid, np.int32),
            *(np.ascontiguousarray(a, np.int64) for a in (start_ns, gil_start, gil_end)),
        ]
        self._check(self._library.processes(self._engine, *(a.ctypes.data for a in arrays), len(arrays[0])))

    def threads(self, pid: Any, tid: Any, start_ns: Any, end_ns: Any) -> None:
        """Columns of schema.THREADS, end_ns -1 for null. Their order is that of the threads' call_ids."""
        arrays = [np.ascontiguousarray(a, t) for a, t in zip((pid, tid, start_ns, end_ns), (np.int32, np.int32, np.int64, np.int64), strict=True)]
        self._check(self._library.threads(self._engine, *(a.ctypes.data for a in arrays), len(arrays[0])))

    def switches(self, sched: pa.Table, end_ns: int) -> None:
        """The rows of schema.SCHED of the segment that ends at end_ns."""
        self._check(self._library.switches(self._engine, columns_of(with_engines_numbers(sched, self._machine), Switches), end_ns))

    def cputimes(self, cputime: pa.Table, start_ns: int, end_ns: int) -> None:
        """The rows of schema.CPUTIME of the segment [start_ns, end_ns) and of the one that follows."""
        queued = cputime["runq_wait_ns"]
        has_queue = not queued.null_count
        held = columns_of(cputime.set_column(4, "runq_wait_ns", queued.fill_null(0)), CpuTimes)
        self._check(self._library.cputimes(self._engine, held, has_queue, start_ns, end_ns))

    def take(self, batches: Iterable[pa.Table], end_ns: int, piece: int) -> Iterator[int]:
        """Take the rows of schema.EVENTS of the segment that ends at end_ns, `piece` at a time; yields how many rows of calls each made.

        They are there until the next but one that makes any. A thread's first batch in the trace, or after a loss, waits for the others of its segment.
        """
        self._library.segment(self._engine, end_ns)
        following = _with_last(batches)
        for batch, last in following:
            waiting = yield from self._take(batch, last, piece)
            if waiting:
                whole = pa.concat_tables([batch.slice(len(batch) - waiting), *(more for more, _ in following)])
                yield from self._take(whole, True, piece)

    def _take(self, events: pa.Table, last: bool, piece: int) -> Generator[int, None, int]:
        """Returns how many rows wait for those that follow."""
        held = columns_of(events, Events)
        self._check(self._library.events(self._engine, held, last))
        left, starved = len(events), c_bool(False)
        while left and not starved:
            left = self._library.take(self._engine, piece, starved)
            self._check(left >= 0)
            yield self._library.row_count(self._engine)
        return int(left)

    def finish(self, end_ns: int) -> int:
        """End the calls still open; returns how many rows that made."""
        self._check(self._library.finish(self._engine, end_ns))
        return int(self._library.row_count(self._engine))

    def save(self) -> bytes:
        """The state between two segments, for load(); those of several shards may be joined."""
        out = np.zeros(self._library.save(self._engine, None, 0), np.uint8)
        self._library.save(self._engine, out.ctypes.data, len(out))
        return out.tobytes()

    def load(self, state: bytes) -> None:
        """Continue from a state that an engine with the same settings saved; the tree starts empty. Raises TraceError where `state` is no such thing."""
        self.hold(state)
        self.new_tree()

    def hold(self, state: bytes) -> None:
        """Take in a state as load(), for rebase() of another engine and nothing else; it may be followed by a later one of the same derivation."""
        self._check(self._library.load(self._engine, state, len(state)))

    def rebase(self, before: "Engine", after: "Engine") -> bool:
        """Go on to the state that `after` holds as from that which `before` holds: states of a derivation that began earlier in the same recording,
        between the same segments, the first of them where this engine is. rebase.c says when that is possible; where it is not, this one
        stays as it is, and the segments between have to be taken.

        new_tree() must have been the last call. Then the tree has what the sums of the calls that ended between the two states differ by:
        merge() and merge_sites() add what they were. `before` and `after` can only hold() another state afterwards.
        """
        done = self._library.rebase(self._engine, before._engine, after._engine)
        self._check(not self._library.error(self._engine))
        return bool(done)

    def window(self, start_ns: int | None, end_ns: int | None, pid: int | None = None, tid: Wanted = None) -> None:
        """From here on only calls in [start_ns, end_ns), and of these threads (`tid` one or several), count; of those that cross an edge, what lies within it.

        None: no such limit. After load(), or before anything was taken.
        """
        start, end = _BEGINNING if start_ns is None else start_ns, _NEVER if end_ns is None else end_ns
        tids = np.unique(np.array([] if tid is None else tid, np.int32))
        self._library.window(self._engine, start, end, -1 if pid is None else pid, tids.ctypes.data, len(tids))
        self._check(not self._library.error(self._engine))

    def shard(self, number: int, of: int) -> None:
        """Of `of` engines with the same settings and input, this one handles every `of`-th thread, beginning at `number`. To be called before anything is taken."""
        self._library.shard(self._engine, number, of)

    def ask(self, key: Ints, ts: Ints, library: Library, known: Answers | None = None) -> Answers:
        """Which call is innermost on threads (pid << 32 | tid) at moments ts, ordered by key and ts: arrays of Answers.

        -1 stands for none. `library`: by func_id LIBRARY, FOREIGN, EVENT_LOOP or several. entry: of the functions of the LIBRARY that the call
        is in the outermost one, called by none of them; caller: the function that called it, or func_id itself. own: the innermost function that
        is not FOREIGN, none where that called an EVENT_LOOP; own_line, own_called: its line that called what is, and what that is. They are
        filled in while events are taken, NO_ANSWER until
        then, and whole after finish(); asking again ends that. func_id may be NO_ANSWER longer than the rest: until a call without a
        name ends. `known`: what was answered before. At its start a call is open, at its end only its caller is.
        """
        key, ts, mask = np.ascontiguousarray(key, np.int64), np.ascontiguousarray(ts, np.int64), np.ascontiguousarray(library, np.uint8)
        blank = [np.full(len(key), NO_ANSWER, dtype) for dtype in (np.int64, *[np.int32] * 6)]
        answers = Answers(*(blank if known is None else (old.astype(new.dtype) for old, new in zip(known, blank, strict=True))))
        self._asked = key, ts, mask, answers  # they have to stay where they are
        addresses = (each.ctypes.data for each in answers)
        self._library.ask(self._engine, key.ctypes.data, ts.ctypes.data, len(key), mask.ctypes.data, len(mask), *addresses)
        return answers

    def settle(self, ns: int) -> None:
        """Answer what was asked of moments before `ns` by the calls that are open now, whatever is still to come."""
        self._library.settle(self._engine, ns)

    def charge(self, charges: npt.NDArray[np.void]) -> None:
        """Have these amounts (CHARGE), by key and in the order of time, charged to calls while events are taken, instead of those that are left.

        Each goes to the call that is innermost on its thread at the moment ts. Counted is what lies within the window. Amounts of PEAK,
        LEVEL and GONE_SINCE are others: charges.c says what they are.
        """
        self._charges = [np.ascontiguousarray(charges[name]) for name in ("key", "ts", "what", "amount", "since")]  # they have to stay where they are
        self._library.charge(self._engine, *(column.ctypes.data for column in self._charges), len(charges))

    def uncharged(self) -> npt.NDArray[np.bool_]:
        """Of which of the amounts it is not known yet whose they are."""
        left = np.zeros(len(self._charges[0]), np.uint8)
        self._library.uncharged(self._engine, left.ctypes.data)
        return left != 0

    def charged(self) -> Ints:
        """Sums of the amounts by node of the tree and `what`, what calls used by themselves: shape (nodes, CHARGES)."""
        address = c_void_p()
        count = self._library.charged(self._engine, address)
        nodes = self._library.node_count(self._engine)
        out = np.zeros((nodes, CHARGES), np.int64)
        sums = view(address.value, np.int64, count * CHARGES).reshape(-1, CHARGES)[:nodes]
        out[: len(sums)] = sums
        return out

    def spent(self) -> dict[str, npt.NDArray[Any]]:
        """By the number of each thread where its time in the window went, ns, by library.SPENT, and `calls`; -1 of one not asked for.

        `known` (bool): whether it is known at all. After finish(). By CPU time on_cpu and runq_wait alone, and in a window only.
        """
        count = self._library.spent(self._engine, None, None, 0)
        spent, unknown = np.zeros((count, len(SPENT)), np.int64), np.zeros(count, np.uint8)
        self._library.spent(self._engine, spent.ctypes.data, unknown.ctypes.data, count)
        return {**dict(zip(SPENT, spent.T, strict=True)), "known": unknown == 0}

    def states(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int16]]:
        """The state of each thread (derive.scheduling.switches.STATES) after the switches so far, and its core, -1 unknown; by its number."""
        count = self._library.state_of_threads(self._engine, None, None, 0)
        state, cpu = np.zeros(count, np.uint8), np.zeros(count, np.int16)
        self._library.state_of_threads(self._engine, state.ctypes.data, cpu.ctypes.data, count)
        return state, cpu

    def want_edges(self) -> None:
        """From here on, make edges()."""
        self._library.want_edges(self._engine)

    def edges(self) -> npt.NDArray[np.void]:
        """Begins and ends of the last piece (library.EDGE), each thread's in the order in which they happened, in the library's own memory."""
        address = c_void_p()
        count = self._library.edges(self._engine, address)
        return view(address.value, EDGE, count)

    def want_cores(self, busy: Mapping[int, tuple[Ints, Ints, Ints]]) -> None:
        """From here on, make cores(). `busy`: by pid the CPU time of a process, as arrays (when, total, slope): see derive.scheduling.curve."""
        arrays = [tuple(np.ascontiguousarray(a, np.int64) for a in own) for own in busy.values()]
        rows = [Busy(pid, *(a.ctypes.data for a in own), len(own[0])) for pid, own in zip(busy, arrays, strict=True)]
        self._busy = (Busy * max(1, len(rows)))(*rows), arrays  # they have to stay where they are
        self._check(self._library.want_cores(self._engine, self._busy[0], len(rows)))

    def cores(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """(library.ON_CORE, library.MEANWHILE by func_id) of the calls that have ended: copies."""
        on, meanwhile = c_void_p(), c_void_p()
        count = self._library.cores(self._engine, on, meanwhile)
        return view(on.value, ON_CORE, count).copy(), view(meanwhile.value, MEANWHILE, self._functions).copy()

    def want_lines(self, first_line: npt.NDArray[np.int32], lined: npt.NDArray[np.uint8]) -> None:
        """From here on, make lines(), and no tree, rows, edges or cores.

        By func_id, for as many functions as functions() was given: `first_line`, and `lined`, which becomes 1 where lines were reported.
        """
        self._lined = first_line, lined  # they have to stay where they are
        assert first_line.dtype == np.int32 and len(first_line) == len(lined) == self._functions
        self._check(self._library.want_lines(self._engine, first_line.ctypes.data, lined.ctypes.data))

    def lines(self) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """The lines that calls have been at: library.SITE, whose `caller_id` is the function and `calls` hits, and library.SUMS of each itself: copies."""
        sites, own = c_void_p(), c_void_p()
        count = self._library.lines(self._engine, sites, own)
        return view(sites.value, SITE, count).copy(), view(own.value, SUMS, count).copy()

    @property
    def met_unknown(self) -> bool:
        """Whether there were calls of functions that functions() was not given."""
        return bool(self._library.met_unknown(self._engine))

    def new_tree(self) -> None:
        """Begin a tree without calls: its sums are those of what ends from here on."""
        self._check(self._library.new_tree(self._engine))

    def packed(self) -> npt.NDArray[np.void]:
        """The tree so far, as library.NODE, without nodes of calls that have not ended: for merge()."""
        count = self._library.packed(self._engine, None)
        out = np.zeros(count, NODE)
        if self._library.packed(self._engine, out.ctypes.data) != count:
            raise _error(1)
        return out

    def merge(self, nodes: npt.NDArray[np.void], keys: Ints) -> None:
        """Add what packed() and keys() of another engine gave to this one's tree. Raises TraceError where it is none."""
        nodes, keys = np.ascontiguousarray(nodes, NODE), np.ascontiguousarray(keys, np.int64)
        self._check(self._library.merge(self._engine, nodes.ctypes.data, len(nodes), keys.ctypes.data, len(keys)))

    def rows(self) -> dict[str, npt.NDArray[Any]]:
        """The rows of the last piece by column (rows.h, ROW), in the library's own memory, as long as take() says: copy what is to last."""
        count = self._library.row_count(self._engine)
        return {name: view(self._library.column(self._engine, k), dtype, count) for k, (name, dtype) in enumerate(self._library.row.items())}

    def sites(self) -> npt.NDArray[np.void]:
        """The call sites of the tree's calls, as library.SITE: a copy, of those that have calls."""
        address = c_void_p()
        count = self._library.sites(self._engine, address)
        sites = view(address.value, SITE, count)
        return sites[sites["calls"] > 0]

    def merge_sites(self, sites: npt.NDArray[np.void]) -> None:
        """Add what sites() of another engine gave."""
        sites = np.ascontiguousarray(sites, SITE)
        self._check(self._library.merge_sites(self._engine, sites.ctypes.data, len(sites)))

    def nodes(self) -> npt.NDArray[np.void]:
        """The tree so far, as library.NODE: no copy, so only until this takes more."""
        return view(self._library.nodes(self._engine), NODE, self._library.node_count(self._engine), self)

    def open_calls(self) -> Ints:
        """The call_ids of the calls that are open, and of those that have ended and whose rows are still to come."""
        out = np.zeros(self._library.open_calls(self._engine, None, 0), np.int64)
        self._library.open_calls(self._engine, out.ctypes.data, len(out))
        return out

    def keys(self) -> Ints:
        """(pid << 32 | tid) of each thread, by its number."""
        count = self._library.keys(self._engine, None, 0)
        out = np.zeros(count, np.int64)
        self._library.keys(self._engine, out.ctypes.data, count)
        return out


def _with_last(batches: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, bool]]:
    """Each with whether it is the last."""
    before: pa.Table | None = None
    for batch in batches:
        if before is not None:
            yield before, False
        before = batch
    if before is not None:
        yield before, True


def _error(number: int) -> PytraceError:
    kind, text = _ERRORS[number]
    return kind(text)


_WIDTH = {"ts": np.int64, "kind": np.int8, "cpu": np.int16, "address": np.int64, "frame": np.int64, "on_cpu_ns": np.int64, "runq_wait_ns": np.int64}


def with_engines_numbers(sched: pa.Table, machine: str) -> pa.Table:
    """Rows of schema.SCHED that were recorded on a machine, for the library."""
    calls = _array(sched["syscall"])
    changed = engines_numbers(calls, machine)
    return sched if changed is calls else sched.set_column(sched.column_names.index("syscall"), "syscall", pa.array(changed))


def columns_of(table: pa.Table, struct: Any) -> Any:
    """A `struct` (library.columns) of columns of `table`, those that it points to. Raises TraceError for a null."""
    names = [name for name, _ in struct._fields_ if name != "rows"]
    if any(table[name].null_count for name in names):
        raise TraceError("the trace has an event without a time or a thread: it is damaged; record it again")
    return columns(struct, **{name: np.ascontiguousarray(_array(table[name]), _WIDTH.get(name, np.int32)) for name in names})


def _array(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Of one piece no copy, which ChunkedArray.to_numpy() makes: into fresh memory that takes longer than half the pass."""
    return column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
