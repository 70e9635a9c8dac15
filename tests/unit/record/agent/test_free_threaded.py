"""The agent in Pythons without a GIL: every call of threads that run at the same time, and no word of what only a GIL makes safe."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.agent_arena import ACTIVE, OPEN, QUIET, REFUSED, STANDS, Arena, Session, assert_balanced
from tests.unit.agent_pythons import FREE_THREADED, TARGETS, attached, built, run

pytestmark = [built, pytest.mark.skipif(not FREE_THREADED, reason="no Python without a GIL is here: scripts/roots.sh builds some")]
each = pytest.mark.parametrize("interpreter", FREE_THREADED or ["none"])

AT_WORK = """
import threading, time
sys.path.insert(0, {folder!r})
import no_gil
stop, done, turned = [], [], [0, 0, 0]
def turns(thread):
    while not stop:
        no_gil.work(thread, 100)
        turned[thread] += 1
        time.sleep(0.002)  # what is recorded meanwhile is read by the test
    done.append(thread)
def each_turns():
    before = list(turned)
    while any(now < then + 2 for now, then in zip(turned, before)): time.sleep(0.001)  # the second begins after this call
threads = [threading.Thread(target=turns, args=(thread,)) for thread in range(3)]
for thread in threads: thread.start()
serve()
stop.append(1)
for thread in threads: thread.join()
assert sorted(done) == [0, 1, 2] and not sys._is_gil_enabled()
"""


def counts(arena: Arena) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, count in arena.counts().items():
        file, name, _ = key.rsplit(":", 2)
        if file.endswith("no_gil.py") or (file.startswith("<made") and name == "made"):
            found[name] = found.get(name, 0) + count
    found.pop("<module>", None)
    return found


@each
def test_threads_at_full_rate_lose_nothing(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", chunk_records=128)
    said = json.loads(run(session, interpreter, str(TARGETS / "no_gil.py")).splitlines()[-1].removeprefix("done "))
    assert not said["gil"]
    (arena,) = session.arenas()
    assert arena.header["state"] == QUIET
    assert arena.header["dropped"] == arena.header["unnamed"] == 0
    assert counts(arena) == said["calls"]
    assert_balanced(arena)
    assert len({int(chunk["order"]) for chunk in arena.chunks}) == len(arena.chunks) > 1000
    for events in arena.threads.values():
        assert (events["stamp"][1:] >= events["stamp"][:-1]).all()


@each
def test_sessions_begin_and_end_while_threads_call(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, AT_WORK.format(folder=str(TARGETS))) as program:
        for number in range(5):
            session = Session(tmp_path / str(number))
            if number == 0:
                program.load(session)
            else:
                while program.ask(f"begin {session.directory}") != "0":
                    pass
                session.wait(ACTIVE)
            program.ask("no_gil.work(9, 200), each_turns()")
            session.command_stop()
            (arena,) = session.wait(QUIET)
            assert arena.header["dropped"] == arena.header["unnamed"] == 0
            assert_balanced(arena)
            stopped = int(arena.header["stopped"]) & 0xFFFFFFFFFFFF
            assert all((events["stamp"] <= stopped).all() for events in arena.threads.values())
            assert (
                np.sum([arena.functions[n].name == "shared" for n in arena.events["function"][arena.events["kind"] == 0].tolist()]) >= 200 + 3 * 100
            )
            session.close()


@each
@pytest.mark.parametrize("option", ["args", "c_calls", "opcodes", "memory"])
def test_what_needs_a_gil_is_refused(interpreter: str, option: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", **{option: ["*"] if option == "args" else 1})
    assert run(session, interpreter, "-c", "print(1)") == "1\n"
    (arena,) = session.wait(REFUSED)
    message = arena.header["message"].decode()
    assert message.startswith("Without a GIL --") and message.endswith(".")


COPIES = """
import sys, threading
def leaf(n):
    return n
def calls(n):
    total = leaf(n)

    return (total +
            leaf(n))
def numbers(n):
    for k in range(n):
        yield calls(k)
def turn(made):
    for _ in range(30):
        for _ in numbers(20):
            pass
    if handed:
        with one:
            next(handed[0])
    made()
one = threading.Lock()
handed = [numbers(1000)]
next(handed[0])
space = {"leaf": leaf}
made = []
for number in range(60):  # of one size each, and none of them dies
    exec(compile("\\n" * number + "def made():\\n" + "\\n" * (number % 7) + "    leaf(0)", "<made>", "exec"), space)
    made.append(space["made"])
threads = [threading.Thread(target=turn, args=(each,)) for each in made]
for thread in threads[:32]: thread.start()
for thread in threads[:32]: thread.join()
handed.clear()  # it stands in the copy of a thread that is gone, which CPython itself would not find again once that is given back
for thread in threads[32:]:
    thread.start()
    thread.join()
    sys._clear_internal_caches()  # its copies are given back, and may be another function's next
"""


@each
@pytest.mark.parametrize("copies", [1, 0])
def test_lines_on_threads_that_each_run_a_copy_of_the_code(copies: int, interpreter: str, tmp_path: Path) -> None:
    """From 3.14 on a frame stands in its thread's own copy (-X tlbc=1), all of which have the lines of the code object."""
    session = Session(tmp_path / "session", lines=1)
    run(session, interpreter, "-X", f"tlbc={copies}", "-c", COPIES)
    (arena,) = session.arenas()
    assert_balanced(arena)
    handed = 33  # 32 times to another thread
    of_calls = 60 * 30 * 20 + handed
    sites = {key: count for key, count in arena.sites().items() if key.startswith(("<string>:", "<made>:made")) and "<string>" in key.split(" > ")[1]}
    assert sites == {
        "<string>:<module>:1:23 > <string>:numbers:10": 1,
        "<string>:calls:5:6 > <string>:leaf:3": of_calls,
        "<string>:calls:5:9 > <string>:leaf:3": of_calls,
        "<string>:numbers:10:12 > <string>:calls:5": of_calls,
        "<string>:turn:13:15 > <string>:numbers:10": 60 * 30 * 21,
        "<string>:turn:13:19 > <string>:numbers:10": handed - 1,
        **{f"<made>:made:{number + 1}:{number + number % 7 + 2} > <string>:leaf:3": 1 for number in range(60)},
    }
    of_numbers = 60 * 30 * 21 + handed
    lines = {key: count for key, count in arena.lines("<string>").items() if not key.startswith(("<module>", "turn"))}
    assert lines == {
        "leaf:3:4": 2 * of_calls + 60,
        "calls:5:6": of_calls,
        "calls:5:8": 2 * of_calls,
        "calls:5:9": of_calls,
        "numbers:10:11": of_numbers,
        "numbers:10:12": of_calls,
    }


OPEN_FRAMES = """
import threading
here, leave = threading.Barrier(4), threading.Event()
def inner():
    here.wait()

    leave.wait()
def outer():

    inner()
for _ in range(3): threading.Thread(target=outer).start()
here.wait()
serve()
leave.set()
"""


@each
def test_open_frames_of_threads_that_each_run_a_copy_of_the_code(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", lines=1)
    with attached(interpreter, OPEN_FRAMES) as program:
        program.load(session)
        program.ask("1")
    (arena,) = session.wait(QUIET)
    assert_balanced(arena)
    start = next(function.first_line for function in arena.functions.values() if function.name == "inner")
    found = []
    for events in arena.threads.values():
        opened = events[: np.argmax(~np.isin(events["kind"], (OPEN, STANDS)))]
        of_own = [(arena.functions[int(row["function"])].name, int(row["kind"]), int(row["line"]) - start) for row in opened]
        found += [place for place in of_own if place[0] == "inner" or place[:2] == ("outer", STANDS)]
    assert len(found) == 9
    # The last of them may not have come from the barrier yet.
    assert set(found) - {("inner", STANDS, 1)} == {("outer", STANDS, 6), ("inner", OPEN, 6), ("inner", STANDS, 3)}
