"""Random events through the library that rebuilds calls: run by test_rebuild_fuzz.py, with the library to load, and seeds from and to.

Nothing may fault, every call that was entered comes out once, and the sums hold, whatever the numbers are.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.rebuild import library
from pytrace_ebpf.rebuild.engine import Engine
from pytrace_ebpf.rebuild.gil_handoffs import gil_handoffs
from pytrace_ebpf.trace.schema import CPUTIME, EVENTS, SCHED, CallKind

EXTREME = np.array([-(2**63), -(2**62), -1, 0, 1, 2**31, 2**40, 2**62, 2**63 - 1])
Rng = np.random.Generator
Rows = dict[str, np.ndarray]


def moments(rng: Rng, count: int, start: int, end: int, wild: bool) -> np.ndarray:
    ts = np.sort(rng.integers(start, end, count))
    return np.where(rng.random(count) < 0.1, rng.choice(EXTREME, count), ts) if wild else ts


def table(schema: pa.Schema, columns: dict[str, Any]) -> pa.Table:
    """The columns as they are needed; what is missing is 0."""
    count = len(columns["ts"])
    return pa.table([pa.array(columns.get(f.name, np.zeros(count)), f.type, safe=False) for f in schema], schema=schema)


def threads(rng: Rng, count: int, most: int) -> dict[str, np.ndarray]:
    pid, tid = rng.integers(0, 3, count), rng.integers(0, most, count)
    order = np.lexsort((tid, pid)) if rng.random() < 0.9 else np.arange(count)
    return {"pid": pid[order], "tid": tid[order]}


def events(rng: Rng, count: int, most: int, start: int, end: int, wild: bool) -> pa.Table:
    weights = rng.dirichlet([5, 5, 0.3, 0.1, 1, 1, 1, 3, 0.5])
    columns = threads(rng, count, most) | {
        "ts": moments(rng, count, start, end, wild),
        "kind": rng.choice(len(CallKind), count, p=weights),
        "func_id": rng.choice(np.array([-(2**31), -1, 0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1]), count),
        "frame": rng.choice(rng.choice([rng.integers(0, 5, 100), rng.integers(-(2**63), 2**63 - 1, 100), np.zeros(100, np.int64)]), count),
        "line": rng.integers(-(2**31), 2**31, count),
    }
    return table(EVENTS.arrow, columns)


def deep(rng: Rng, count: int, start: int) -> pa.Table:
    """One thread that goes down and comes back, half of all events lost."""
    steps = np.where(rng.random(2 * count) < 0.5, 1, -1)
    level = np.maximum.accumulate(np.cumsum(steps)) if rng.random() < 0.5 else np.concatenate((np.arange(count), np.arange(count)[::-1]))
    kept = np.flatnonzero(rng.random(len(level)) < 0.5)
    ts = start + np.arange(len(level))
    kind = np.where(np.arange(len(level)) < count, 0, 1)
    zero = np.zeros(len(kept))
    return table(
        EVENTS.arrow, {"ts": ts[kept], "pid": zero, "tid": zero, "kind": kind[kept], "func_id": level[kept] % 8, "frame": level[kept] * 16 + 16}
    )


def windows(rng: Rng, start: int, end: int) -> np.ndarray:
    return np.sort(rng.choice(np.arange(start, end), 2 * rng.integers(0, 4), replace=False)).reshape(-1, 2)


def engine_of(rng: Rng, start: int, end: int, by_cputime: bool, rows: bool = True) -> Engine:
    engine = Engine(start, by_cputime=by_cputime, rows=rows, nodes=int(rng.choice([1, 7, 1 << 20])))
    if rng.random() < 0.8:
        engine.has_call_lines()
    engine.losses(windows(rng, start, end), windows(rng, start, end))
    engine.functions(rng.integers(0, 6, 6), rng.integers(-1, 3, 6))
    engine.processes([0, 1, 1], rng.choice(EXTREME, 3), [0, 100, 5], [50, 200, -5])
    engine.threads([0, 0, 2], [0, 1, 1], rng.choice(EXTREME, 3), rng.choice(EXTREME, 3))
    return engine


def scheduling(rng: Rng, engine: Engine, by_cputime: bool, most: int, start: int, end: int, wild: bool) -> None:
    count = int(rng.integers(0, 300))
    columns = threads(rng, count, most) | {"ts": moments(rng, count, start, end, wild)}
    if by_cputime:
        for name in ("on_cpu_ns", "runq_wait_ns"):
            columns[name] = rng.choice(EXTREME, count) if wild else np.sort(rng.integers(0, end, count))
        engine.cputimes(table(CPUTIME.arrow, columns), start, end)
        return
    columns |= {"kind": rng.integers(0, 8, count), "cpu": rng.integers(-1, 4, count), "state": rng.integers(0, 300, count)}
    columns |= {"syscall": rng.choice([-2, -1, 0, 202], count), "address": rng.choice([0, 20, 120, 2**63 - 1], count)}
    engine.switches(table(SCHED.arrow, columns), end)


def one(seed: int, windowed: bool = False) -> None:
    rng = np.random.default_rng(seed)
    by_cputime, wild, most = bool(rng.random() < 0.3), bool(rng.random() < 0.4), int(rng.choice([1, 3, 50, 3000]))
    cuts = np.sort(rng.integers(0, 10_000, 6)).tolist()
    engine = engine_of(rng, cuts[0], cuts[-1] + 20, by_cputime)
    tree = Engine(0, by_cputime=False, rows=False, nodes=1 << 20)
    asked = None
    if not by_cputime:
        engine.want_cores(busy(rng))
    if windowed:
        edges = [
            None if rng.random() < 0.2 else int(rng.choice([edge, rng.choice(EXTREME)], p=[0.9, 0.1])) for edge in np.sort(rng.integers(0, 10_000, 2))
        ]
        engine.window(*edges, *(None if rng.random() < 0.8 else int(rng.integers(0, 3)) for _ in range(2)))
        key = np.sort(rng.integers(0, 3, 200) << 32 | rng.integers(0, most, 200))
        when, library = np.sort(moments(rng, 200, 0, 10_000, wild)), rng.integers(0, 8, int(rng.integers(0, most + 2)), np.uint8)
        asked = engine.ask(key, when, library)
    rows: list[Rows] = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        end = max(end, start + 1)
        scheduling(rng, engine, by_cputime, most, start, end, wild)
        count = int(rng.integers(0, 1500))
        whole = deep(rng, count + 1, start) if rng.random() < 0.2 else events(rng, count, most, start, end, wild)
        size = int(rng.integers(1, 600))
        batches = [whole.slice(at, size) for at in range(0, len(whole), size)]
        rows += taken(engine, engine.take(batches, end, int(rng.integers(1, 400))))
        if rng.random() < 0.2:
            add(tree, [engine])
            engine.new_tree()
        if asked is not None and rng.random() < 0.4:
            engine.settle(int(rng.integers(0, 10_000)))
            asked = engine.ask(key, when, library, asked)
    rows += taken(engine, iter([engine.finish(cuts[-1])]))
    engine.spent()
    add(tree, [engine])
    if windowed:
        whole = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
        assert len(np.unique(whole["call_id"])) == len(whole["call_id"])
        assert asked is None or np.isin(asked[0][asked[0] >= 0], np.append(whole["call_id"], asked[0])).all()
        check_tree(tree.nodes(), whole)
        check_sites(tree.sites(), whole)
        if not by_cputime:
            check_cores(engine, whole)
        return
    check_tree(tree.nodes(), {name: np.concatenate([part[name] for part in rows]) for name in rows[0]})
    check_sites(tree.sites(), {name: np.concatenate([part[name] for part in rows]) for name in rows[0]})
    if not by_cputime:
        check_cores(engine, {name: np.concatenate([part[name] for part in rows]) for name in rows[0]})
    check(engine, {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}, by_cputime, wild)


def taken(engine: Engine, pieces: Iterator[int]) -> list[Rows]:
    return [{name: column.copy() for name, column in engine.rows().items()} for _ in pieces]


def check(engine: Engine, rows: Rows, by_cputime: bool, wild: bool) -> None:
    ids = np.sort(rows["call_id"])
    number, place = ids >> 40, ids & (1 << 40) - 1
    first = np.searchsorted(number, number)
    assert (place == np.arange(len(ids)) - first).all(), "every call comes out once"
    assert (rows["end_ns"] - rows["start_ns"] == rows["wall_ns"]).all()
    assert wild or (rows["wall_ns"] >= 0).all()
    roots = rows["depth"] == 0
    assert rows["self_wall_ns"].sum() == rows["wall_ns"][roots].sum()
    parts = sum(rows[f"{name}_ns"] for name in ("on_cpu", "runq_wait", "gil_wait", "blocked"))
    told = (rows["known"] & 7) == 7
    assert by_cputime or (parts == rows["wall_ns"])[told].all()


def busy(rng: Rng) -> dict[int, tuple[np.ndarray, ...]]:
    """What two processes had of the cores, as nobody would say it."""
    return {pid: (np.sort(moments(rng, n, 0, 10_000, True)), rng.choice(EXTREME, n), rng.integers(-3, 3, n)) for pid, n in ((0, 20), (1, 0))}


def check_cores(engine: Engine, rows: Rows) -> None:
    cells, _ = engine.cores()
    assert len(np.unique(cells[["func_id", "cpu"]])) == len(cells)
    known = (rows["known"] & 16 != 0) & (rows["first_cpu"] >= 0)
    assert cells["ns"].sum() == rows["self_on_cpu_ns"][known].sum()


def check_tree(nodes: np.ndarray, rows: Rows) -> None:
    roots = rows["depth"] == 0
    calls = nodes["depth"] >= 0
    assert nodes["calls"][calls].sum() == len(rows["call_id"])
    assert nodes["total"]["wall"][calls].sum() == rows["wall_ns"].sum()
    assert nodes["self"]["wall"][calls].sum() == rows["self_wall_ns"].sum()
    assert nodes["total"]["wall"][~calls].sum() == rows["wall_ns"][roots].sum()
    assert nodes["total"]["unknown"][calls].sum() == (rows["known"] & 0x81 == 0).sum()  # of others a part is known


def check_sites(sites: np.ndarray, rows: Rows) -> None:
    assert len(np.unique(sites[["caller_id", "line", "func_id"]])) == len(sites)
    assert sites["calls"].sum() == len(rows["call_id"])
    assert sites["self_wall"].sum() == rows["self_wall_ns"].sum()
    lines, counts = np.unique(rows["call_line"], return_counts=True)
    summed = np.zeros(len(lines), np.int64)
    np.add.at(summed, np.searchsorted(lines, sites["line"]), sites["calls"])
    assert (summed == counts).all() and (lines != 0).all() and lines.min(initial=-1) >= -1


def some_rows(seed: int) -> None:
    """Rows of some functions, and of what was suspended, are those among the rows of all, whichever way the engine took; cores are the same."""
    rng = np.random.default_rng(seed)
    by_cputime, wild, most = bool(rng.random() < 0.2), bool(rng.random() < 0.2), int(rng.choice([1, 3, 50]))
    cuts = np.sort(rng.integers(0, 10_000, 5)).tolist()
    wanted, suspended = rng.choice(8, int(rng.integers(0, 4)), replace=False), bool(rng.random() < 0.5)
    begun = rng.bit_generator.state
    found, on_cores = [], list[list[np.ndarray]]()
    for of_all in (True, False):
        rng.bit_generator.state = begun
        engine = engine_of(rng, cuts[0], cuts[-1] + 20, by_cputime)
        if not by_cputime:
            engine.want_cores(busy(rng))
        if not of_all:
            engine.want_rows_of(wanted, suspended)
        rows: list[Rows] = []
        for start, end in zip(cuts, cuts[1:], strict=False):
            end = max(end, start + 1)
            scheduling(rng, engine, by_cputime, most, start, end, wild)
            whole = deep(rng, 700, start) if rng.random() < 0.3 else events(rng, int(rng.integers(0, 1500)), most, start, end, wild)
            rows += taken(engine, engine.take([whole], end, int(rng.integers(1, 700))))
        rows += taken(engine, iter([engine.finish(cuts[-1])]))
        whole_ = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
        own = np.isin(whole_["func_id"], wanted[wanted < 6]) | (suspended & ((whole_["flags"] & 96) != 0))
        assert of_all or own.all()
        order = np.flatnonzero(own)[np.argsort(whole_["call_id"][own])]
        found.append({name: column[order] for name, column in whole_.items()})
        on_cores.append([] if by_cputime else [np.sort(engine.cores()[0]), engine.cores()[1]])
    assert all(np.array_equal(one, other) for one, other in zip(*on_cores, strict=True))
    for name, column in found[0].items():
        assert np.array_equal(column, found[1][name]), name


def shards(seed: int) -> None:
    """Three engines with a third of the threads each find what one finds, also from the state of others."""
    rng = np.random.default_rng(seed)
    by_cputime, wild, most = bool(rng.random() < 0.3), bool(rng.random() < 0.4), int(rng.choice([3, 50]))
    cuts = np.sort(rng.integers(0, 10_000, 4)).tolist()
    sets = []
    for count in (1, 3):
        engines = [engine_of(np.random.default_rng(seed), cuts[0], cuts[-1] + 20, by_cputime, rows=False) for _ in range(count)]
        for number, engine in enumerate(engines):
            engine.shard(number, count)
        sets.append(engines)
    trees = [Engine(0, by_cputime=False, rows=False, nodes=1 << 20) for _ in sets]
    for place, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        end, again = max(end, start + 1), int(rng.integers(0, 2**40))
        whole = events(rng, int(rng.integers(0, 1500)), most, start, end, wild)
        for engines in sets:
            for engine in engines:
                scheduling(np.random.default_rng(again), engine, by_cputime, most, start, end, wild)
                for _ in engine.take([whole], end, 300):
                    pass
        if place == 1:
            for engines, tree in zip(sets, trees, strict=True):
                state = b"".join(engine.save() for engine in engines)
                add(tree, engines)
                engines[:] = [engine_of(np.random.default_rng(seed), cuts[0], cuts[-1] + 20, by_cputime, rows=False) for _ in engines]
                for number, engine in enumerate(engines):
                    engine.shard(number, len(engines))
                    engine.load(state)
    for engines, tree in zip(sets, trees, strict=True):
        for engine in engines:
            engine.finish(cuts[-1])
        add(tree, engines)
    one, several = (by_thread(tree) for tree in trees)
    assert one == several
    one, several = (np.sort(tree.sites(), order=["caller_id", "line", "func_id"]) for tree in trees)
    assert all((one[name] == several[name]).all() for name in ("caller_id", "line", "func_id", "calls", "total", "self_wall"))
    spent = [sorted(zip(*([*engine.keys()] for engine in engines[:1]), strict=True)) for engines in sets]
    assert spent[0] == spent[1], "all meet all threads"


def add(tree: Engine, engines: list[Engine]) -> None:
    for engine in engines:
        tree.merge(engine.packed(), engine.keys())
        tree.merge_sites(engine.sites())


def by_thread(tree: Engine) -> dict[int, list[int]]:
    """Calls and times of each thread's outermost calls; of calls with few nodes, those of a function stand elsewhere."""
    nodes, keys = tree.nodes(), tree.keys()
    roots = nodes[nodes["thread"] != library.NO_THREAD]
    return {int(keys[n["thread"]]): [int(n["calls"]), *map(int, n["total"].tolist())] for n in roots}


def forged(seed: int) -> None:
    """Nodes that nobody made are refused, or added up without harm."""
    rng = np.random.default_rng(seed)
    nodes = np.zeros(50, library.NODE)
    nodes["thread"] = rng.choice([library.NO_THREAD, 0, 1, 2], 50)
    nodes["parent"] = rng.integers(0, rng.choice([1, 50]), 50)
    nodes["func_id"], nodes["outermost"] = rng.choice([-1, 0, 2**31 - 1], 50), rng.integers(0, 256, 50)
    nodes["depth"] = rng.choice([-1, 0, 2**31 - 1], 50)
    tree = Engine(0, by_cputime=False, rows=False, nodes=int(rng.choice([1, 7, 100])))
    for _ in range(3):
        try:
            tree.merge(nodes[: rng.integers(0, 50)], np.array([0, 1 << 32]))
        except TraceError:
            return


def damaged(seed: int) -> None:
    """A saved state of which some bytes are others: it is refused, or gone on from without harm."""
    rng = np.random.default_rng(seed)
    by_cputime = bool(rng.random() < 0.3)

    def begun() -> Engine:
        return engine_of(np.random.default_rng(seed), 0, 3000, by_cputime)

    engine = begun()
    for start in (0, 1000):
        scheduling(rng, engine, by_cputime, 4, start, start + 1000, False)
        list(engine.take([events(rng, 300, 4, start, start + 1000, False)], start + 1000, 100))
    state = np.frombuffer(engine.save(), np.uint8).copy()
    for _ in range(5):
        changed = state.copy()
        changed[rng.integers(0, len(state), rng.integers(0, 4))] = rng.choice([0, 1, 2, 127, 128, 255])
        other = begun()
        try:
            other.load(changed[: rng.choice([len(state), rng.integers(0, len(state))], p=[0.9, 0.1])].tobytes())
        except TraceError:
            continue
        scheduling(rng, other, by_cputime, 4, 2000, 3000, False)
        list(other.take([events(rng, 300, 4, 2000, 3000, False)], 3000, 100))
        other.finish(3000)


def turns(seed: int) -> None:
    """Events next to others' are found whatever the times are."""
    rng = np.random.default_rng(seed)
    count, wild = int(rng.integers(0, 400)), bool(rng.random() < 0.5)
    acts, cut = events(rng, count, int(rng.choice([1, 3, 50])), 0, 500, wild), int(rng.integers(0, count + 1))
    found = gil_handoffs([acts.slice(0, cut), acts.slice(cut)], moments(rng, int(rng.integers(0, 20)), 0, 500, wild))
    shown = ~np.isin(acts["kind"].to_numpy(), (CallKind.OPEN, CallKind.STANDS, CallKind.RESET))
    assert not found[~shown].any()
    assert found[shown].all() or shown.sum() > 2


def rebased(seed: int) -> None:
    """From a state to a later one of its own derivation: all is as it was there. To one of which some bytes are others: no harm."""
    rng = np.random.default_rng(seed)

    def begun() -> Engine:
        return engine_of(np.random.default_rng(seed), 0, 3000, False, rows=False)

    engine = begun()
    states: list[bytes] = []
    for start in (0, 1000):
        scheduling(rng, engine, False, 4, start, start + 1000, False)
        list(engine.take([events(rng, 300, 4, start, start + 1000, False)], start + 1000, 100))
        states.append(engine.save())
        sums = engine.packed(), engine.keys(), engine.sites()
        engine.new_tree()
    for changes in (0, 1, 2, 4, 4, 4, 20):
        state = np.frombuffer(states[1], np.uint8).copy()
        state[rng.integers(0, len(state), changes)] = rng.choice([0, 1, 2, 127, 128, 255])
        fresh, before, after = begun(), begun(), begun()
        try:
            fresh.load(states[0])
            before.hold(states[0])
            after.hold(state.tobytes())
            done = fresh.rebase(before, after)
            assert done or changes, seed
            if done:
                fresh.merge(*sums[:2])
                fresh.merge_sites(sums[2])
            assert changes or sum_of(fresh) == sum_of(sums[0]), seed
            fresh.new_tree()
            fresh.load(fresh.save())
        except TraceError:
            continue
        straight = begun()
        straight.load(states[1])
        drawn = rng.bit_generator.state
        for each in (fresh, straight):
            rng.bit_generator.state = drawn
            scheduling(rng, each, False, 4, 2000, 3000, False)
            list(each.take([events(rng, 300, 4, 2000, 3000, False)], 3000, 100))
            each.finish(3000)
        assert changes or (sum_of(fresh) == sum_of(straight) and str(fresh.spent()) == str(straight.spent())), seed


def sum_of(tree: "Engine | np.ndarray") -> list[tuple[int, ...]]:
    """Each node's numbers, in whatever order."""
    nodes = tree.packed() if isinstance(tree, Engine) else tree
    return sorted((int(each["calls"]), int(each["func_id"]), *each["total"].tolist(), *each["self"].tolist()) for each in nodes)


def lined(seed: int) -> None:
    """Lines: whatever comes, what began has ended, and together they have all the time of their functions."""
    rng = np.random.default_rng(seed)
    by_cputime, wild, most = bool(rng.random() < 0.3), bool(rng.random() < 0.4), int(rng.choice([1, 3, 50]))
    cuts = np.sort(rng.integers(0, 10_000, 6)).tolist()
    begun = rng.bit_generator.state
    found = []
    for of_lines in (False, True):
        rng.bit_generator.state = begun
        engine = Engine(cuts[0], by_cputime=by_cputime, rows=False, nodes=0 if of_lines else 1 << 20)
        engine.losses(windows(rng, cuts[0], cuts[-1]), windows(rng, cuts[0], cuts[-1]))
        engine.functions(np.zeros(6), rng.integers(-1, 3, 6))
        own = np.ones(6, np.int32), np.zeros(6, np.uint8)
        if of_lines:
            engine.want_lines(*own)
        edges = [None if rng.random() < 0.6 else int(edge) for edge in np.sort(rng.integers(0, 10_000, 2))]
        engine.window(*edges)
        for start, end in zip(cuts, cuts[1:], strict=False):
            end = max(end, start + 1)
            scheduling(rng, engine, by_cputime, most, start, end, wild)
            whole = events(rng, int(rng.integers(0, 1500)), most, start, end, wild)
            named = whole.set_column(4, "func_id", pa.array(rng.integers(0, 6, len(whole)), pa.int32()))
            list(engine.take([named], end, int(rng.integers(1, 400))))
        engine.finish(cuts[-1])
        found.append(engine)
    of_calls, of_lines = found[0].nodes(), found[1]
    sites, self = of_lines.lines()
    assert (sites["open"] == 0).all() and (sites["calls"] >= 0).all()
    for func_id in range(6):
        assert self["wall"][sites["caller_id"] == func_id].sum() == of_calls["self"]["wall"][of_calls["func_id"] == func_id].sum()


def strange_kinds() -> None:
    rng = np.random.default_rng(1)
    for kind in (-1, len(CallKind), 100):
        engine = engine_of(rng, 0, 100, False)
        whole = table(EVENTS.arrow, {"ts": [1], "pid": [0], "tid": [0], "kind": [kind]})
        try:
            list(engine.take([whole], 50, 10))
        except TraceError:
            continue
        raise AssertionError(f"an event of kind {kind} was taken")


if __name__ == "__main__":
    library.FILE = Path(sys.argv[1])
    strange_kinds()
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        try:
            one(seed)
            lined(seed)
            one(seed, windowed=True)
            some_rows(seed)
            shards(seed)
            forged(seed)
            damaged(seed)
            rebased(seed)
            turns(seed)
        except BaseException:
            print(f"seed {seed}", flush=True)
            raise
    print("all held")
