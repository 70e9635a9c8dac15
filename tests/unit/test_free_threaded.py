"""The agent in Pythons without a GIL: every call of threads that run at the same time, and no word of what only a GIL makes safe."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.agent_arena import ACTIVE, QUIET, REFUSED, Arena, Session, assert_balanced
from tests.unit.agent_pythons import FREE_THREADED, TARGETS, attached, built, run

pytestmark = [built, pytest.mark.skipif(not FREE_THREADED, reason="no Python without a GIL is here: scripts/roots.sh builds some")]
each = pytest.mark.parametrize("interpreter", FREE_THREADED or ["none"])

AT_WORK = """
import threading, time
sys.path.insert(0, {folder!r})
import no_gil
stop, done = [], []
def turns(thread):
    while not stop:
        no_gil.work(thread, 100)
        time.sleep(0.002)  # what is recorded meanwhile is read by the test
    done.append(thread)
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
            program.ask("no_gil.work(9, 200)")
            session.command_stop()
            (arena,) = session.wait(QUIET)
            assert arena.header["dropped"] == arena.header["unnamed"] == 0
            assert_balanced(arena)
            stopped = int(arena.header["stopped"]) & 0xFFFFFFFFFFFF
            assert all((events["stamp"] <= stopped).all() for events in arena.threads.values())
            assert np.sum([arena.functions[n].name == "shared" for n in arena.events["function"][arena.events["kind"] == 0].tolist()]) > 200
            session.close()


@each
@pytest.mark.parametrize("option", ["args", "c_calls", "opcodes", "memory"])
def test_what_needs_a_gil_is_refused(interpreter: str, option: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", **{option: ["*"] if option == "args" else 1})
    assert run(session, interpreter, "-c", "print(1)") == "1\n"
    (arena,) = session.wait(REFUSED)
    message = arena.header["message"].decode()
    assert message.startswith("Without a GIL --") and message.endswith(".")
