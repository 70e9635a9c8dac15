"""The agent before the allocators of CPython: it counts what they do, changes nothing, and leaves them as they were; on every Python at hand."""

from pathlib import Path

import numpy as np

from tests.agent_arena import ACTIVE, QUIET, Arena, Session
from tests.unit.agent_pythons import attached, built, every_python, run

pytestmark = built

SIZE, COUNT = 10_000, 500
PROGRAM = f"""
import threading, time
def keep(): return [bytes({SIZE}) for _ in range({COUNT})]
def drop(): keep().clear()
def hand(to): to.append(keep()); taken.wait(); nothing()
def nothing(): pass
kept = keep()
nothing()
drop()
nothing()
handed, taken = [], threading.Event()
thread = threading.Thread(target=hand, args=(handed,)); thread.start()
while not handed: time.sleep(0.001)
handed.clear(); taken.set(); thread.join()
nothing()
"""
CHURN = """
import threading, random, queue
at_work, stop, handed = [], [], queue.Queue(200)
def filled(rng):
    byte = rng.randrange(256)
    return byte, bytearray([byte]) * rng.choice((1, 30, 500, 600, 5000, 200000))
def check(byte, block):
    assert block.count(byte) == len(block), "a block was changed"
def churn(seed):
    rng, held = random.Random(seed), []
    at_work.append(1)
    while not stop:
        held.append(filled(rng))
        if rng.random() < 0.3: held[-1][1].extend(bytes([held[-1][0]]) * rng.randrange(3000))
        if rng.random() < 0.3:
            byte, block = held.pop(rng.randrange(len(held)))
            check(byte, block)
            block.clear()
        if rng.random() < 0.2:
            try: handed.put_nowait(held.pop())
            except (queue.Full, IndexError): pass
        if rng.random() < 0.2:
            try: check(*handed.get_nowait())
            except queue.Empty: pass
        if len(held) > 200:
            for each in held: check(*each)
            held.clear()
        text = str(rng.random()) * 50
        assert len(text.encode().decode()) == len(text)
threads = [threading.Thread(target=churn, args=(k,)) for k in range(4)]
for thread in threads: thread.start()
while len(at_work) < 4: pass
ALLOCATORS = '''
class Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in "context malloc calloc realloc free".split()]
def of(domain):
    found = Allocator()
    ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(found))
    return [getattr(found, name) for name, _ in Allocator._fields_]
'''
exec(ALLOCATORS)
import tracemalloc
serve()
stop.append(1)
for thread in threads: thread.join()
"""
ALLOCATORS = "[of(domain) for domain in range(3)]"


def counted(arena: Arena) -> dict[str, np.ndarray]:
    """By thread's number what it counted, in order."""
    threads: dict[int, list[np.ndarray]] = {}
    for head, records in arena.allocations:
        threads.setdefault(int(head["thread"]), []).append(records)
    return {str(thread): np.concatenate(records) for thread, records in threads.items()}


@every_python
def test_what_is_allocated_is_counted_once_and_what_is_freed_with_who_allocated_it(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", memory=1)
    run(session, interpreter, "-c", PROGRAM)
    (arena,) = session.arenas()
    main, other = sorted(counted(arena).values(), key=lambda records: -int(records["bytes"].sum()))[:2]
    whole = SIZE * COUNT
    for records, times in ((main, 2), (other, 1)):
        large = int(records["bytes"].sum())
        assert (
            times * whole <= large <= 1.05 * times * whole + 4_000_000
        )  # and what the program is made of: not twice, although large blocks go through two allocators
        assert (np.diff(records["event"].astype(np.int64)) >= 0).all()
    assert int(main["freed_bytes"].max()) >= whole  # by drop
    assert whole <= int(main["level"].sum()) <= 1.1 * whole + 4_000_000  # what is kept, or was imported
    assert abs(int(other["level"].sum())) < whole // 10  # the main thread freed it
    assert int(main["peak"].max()) >= whole
    assert arena.header["allocations_dropped"] == arena.header["untracked"] == 0


@every_python
def test_without_the_option_nothing_is_counted(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s")
    run(session, interpreter, "-c", PROGRAM)
    assert not session.arenas()[0].allocations


@every_python
def test_it_comes_and_goes_while_threads_allocate_and_leaves_the_allocators_as_they_were(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, CHURN) as program:
        before = program.ask(ALLOCATORS)
        first = Session(tmp_path / "0", memory=1)
        program.load(first)
        for number in range(12):
            session = first if not number else Session(tmp_path / str(number), memory=1)
            if number:
                assert program.ask(f"begin {session.directory}") == "0"
                session.wait(ACTIVE)
            assert program.ask(ALLOCATORS) != before
            if number % 3 == 1:
                program.ask("tracemalloc.start()")  # above ours
            session.command_stop()
            session.wait(QUIET)
            if number % 3 == 2:
                program.ask("tracemalloc.stop()")  # which may have been below
            session.close()
        program.ask("tracemalloc.stop()")
        last = Session(tmp_path / "last", memory=1)
        assert program.ask(f"begin {last.directory}") == "0"
        last.wait(ACTIVE)
        last.command_stop()
        last.wait(QUIET)
        assert program.ask(ALLOCATORS) == before
        last.close()


@every_python
def test_a_child_counts_for_itself(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", memory=1)
    program = f"""
import os
def keep(): return [bytes({SIZE}) for _ in range({COUNT})]
def nothing(): pass
before = keep(); nothing()
if not (child := os.fork()):
    nothing(); before.clear(); kept = keep(); nothing(); os._exit(0)
assert os.waitpid(child, 0)[1] == 0
nothing()
"""
    run(session, interpreter, "-c", program)
    parent, child = sorted(session.arenas(), key=lambda arena: int(arena.header["forked_from"]))
    (records,) = counted(child).values()
    assert SIZE * COUNT <= int(records["level"].sum()) <= 1.1 * SIZE * COUNT  # what its parent had allocated is none of it
    assert max(int(records["level"].sum()) for records in counted(parent).values()) >= SIZE * COUNT


@every_python
def test_a_session_ends_with_a_tracer_that_was_killed(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, CHURN) as program:
        before, session = program.ask(ALLOCATORS), Session(tmp_path / "s", memory=1)
        program.load(session)
        session.close()
        while program.ask(ALLOCATORS) != before:
            pass
