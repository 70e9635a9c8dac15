"""The agent in a running program: it begins, reports what is open, ends without remains, and begins again; on every Python at hand."""

import shutil
import time
from pathlib import Path

import pytest

from pytrace_ebpf.record.agent.arena import CALLS
from pytrace_ebpf.record.cpython.functions import module_of
from tests.agent_arena import ACTIVE, ENTRY, OPEN, QUIET, REFUSED, Arena, Session, unbalanced
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import MINOR, MINOR_OF_BUILD, PYTHONS, attached, built, every_build, every_python, run

pytestmark = built

THREADS = """
import threading, time, _thread
def leaf(n): return n + 1
def numbers():
    while True: yield leaf(1)
def work(stop):
    generator, _ = numbers(), at_work.append(1)
    while not stop:
        next(generator)
        try: fail()
        except ValueError: time.sleep(0.0001)
def fail(): raise ValueError
def waits(event): event.wait()
def short(): t = threading.Thread(target=leaf, args=(1,)); t.start(); t.join()
event, stop, at_work = threading.Event(), [], []
threads = [threading.Thread(target=work, args=(stop,)) for _ in range(3)] + [threading.Thread(target=waits, args=(event,))]
for thread in threads: thread.start()
_thread.start_new_thread(work, (stop,))
while len(at_work) < 4: time.sleep(0.001)
def main():
    serve()
main()
stop.append(1); event.set()
for thread in threads: thread.join()
"""
LEAVES = """
def leaf(n): return n
def leaves():
    for n in range(2000): leaf(n)
for _ in range(3):
    thread = threading.Thread(target=leaves); thread.start(); thread.join()
leaves()
"""
TRACES_LEFT = (
    # get_tool() says of the agent's id that it is free.
    "__import__('gc').callbacks + [i for i in range(6) if sys.monitoring.get_tool(i)] if hasattr(sys, 'monitoring') else "
    "[hook for hook in (sys.getprofile(), threading._profile_hook) if hook is not None]"
)


def opened(arena: Arena) -> list[list[str]]:
    """Names of the frames that each thread had open at the start, outermost first."""
    return sorted([arena.functions[n].name for n in e["function"][e["kind"] == OPEN].tolist()] for e in arena.threads.values())


@every_build
def test_two_sessions_one_after_another(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, THREADS) as program:
        for number in range(2):
            session = Session(tmp_path / str(number))
            if number == 0:
                program.load(session)
            else:
                assert program.ask(f"begin {session.directory}") == "0"
                session.wait(ACTIVE)
                assert program.ask(f"begin {session.directory}") == "-1", "one session at a time"
            program.ask("short()")
            session.command_stop()
            (arena,) = session.wait(QUIET)
            assert program.ask(TRACES_LEFT) == "[]"
            stacks = opened(arena)
            assert ["_bootstrap", "_bootstrap_inner", "run", "waits", "wait", "wait"] in stacks
            assert ["<module>", "main", "serve"] in [stack[:3] for stack in stacks]  # which is within ctypes where that loads the agent
            assert sum(stack[:4] == ["_bootstrap", "_bootstrap_inner", "run", "work"] for stack in stacks) == 3
            assert any(stack[:1] == ["work"] for stack in stacks), "a thread that threading does not know"
            assert arena.counts()["<string>:leaf:18"] > 0
            for events in arena.threads.values():
                assert not unbalanced(events)
                assert (events["stamp"] <= int(arena.header["stopped"]) & 0xFFFFFFFFFFFF).all()
            assert sum(arena.functions[n].name == "short" for n in arena.events["function"].tolist()) == 2


@every_build
def test_a_raw_thread_that_began_later_is_found(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, THREADS) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        before = len(session.arenas()[0].threads)
        program.ask("_thread.start_new_thread(work, (stop,))")
        end = time.monotonic() + PATIENCE_S
        while len(session.arenas()[0].threads) <= before:
            assert time.monotonic() < end
            time.sleep(0.05)
        session.command_stop()
        session.wait(QUIET)


@every_build
def test_it_ends_when_the_tracer_is_gone(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, THREADS) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        session.close()
        end = time.monotonic() + PATIENCE_S
        while session.directory.exists():
            assert time.monotonic() < end, list(session.directory.iterdir())
            time.sleep(0.02)
        assert program.ask(TRACES_LEFT) == "[]"
        again = Session(tmp_path / "again")
        while program.ask(f"begin {again.directory}") != "0":  # the files go first, the rest at once after them
            assert time.monotonic() < end
        again.wait(ACTIVE)


@every_build
def test_a_program_that_ends_at_once_when_the_tracer_is_gone_leaves_no_files(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, "serve()") as program:
        session = Session(tmp_path / "session")
        program.load(session)
        session.close()
    assert not session.directory.exists(), list(session.directory.iterdir())


@every_build
def test_a_child_forked_during_a_session(interpreter: str, tmp_path: Path) -> None:
    forks = THREADS + (
        "import os\ndef child():\n  pid = os.fork()\n  if pid: return os.waitpid(pid, 0)[1]\n"
        "  for _ in range(23): leaf(1)\n  os._exit(len(eval(TRACES)))\n"
    )
    # The function must be there before main() serves.
    program_text = forks.replace("def main", "def nothing(): pass\ndef main", 1)
    head, tail = program_text.split("import os\ndef child", 1)
    program_text = f"TRACES = {TRACES_LEFT!r}\nimport os\ndef child" + tail + head
    for follow in (0, 1):
        with attached(interpreter, program_text) as program:
            session = Session(tmp_path / str(follow), follow=follow)
            program.load(session)
            assert program.ask("child()") == ("256" if follow else "0")
            session.command_stop()
            arenas = [arena for arena in session.arenas() if arena.header["pid"] != program.process.pid]
            assert len(arenas) == follow
            for arena in arenas:
                assert arena.header["forked_from"] == program.process.pid
                assert sum(n for key, n in arena.counts().items() if ":leaf:" in key) == 23
                assert opened(arena)[0][:3] == ["<module>", "main", "serve"]


@every_build
def test_another_profiler_is_not_disturbed(interpreter: str, tmp_path: Path) -> None:
    take_all, profile = "for i in range(6): sys.monitoring.use_tool_id(i, 'mine')\n", "sys.setprofile(lambda *_: None)\n"
    everything = take_all if MINOR_OF_BUILD[interpreter] >= 12 else profile
    with attached(interpreter, f"import sys\n{everything}serve()") as program:
        session = Session(tmp_path / "session")
        assert program.ask(f"load {session.directory}/agent.so") == "loaded"
        (arena,) = session.wait(REFUSED)
        message = arena.header["message"].decode()
        assert message.endswith(".") and ":" in message
        assert program.ask("sys.getprofile() is None") == str(MINOR_OF_BUILD[interpreter] >= 12)


@every_python
@pytest.mark.parametrize("goes", [False, True])
def test_a_thread_that_another_profiler_takes_is_counted(interpreter: str, goes: bool, tmp_path: Path) -> None:
    with attached(interpreter, "import sys\nserve()") as program:
        session = Session(tmp_path / "session")
        program.load(session)
        assert program.ask("sys.setprofile(lambda *_: None)") == "None"
        assert not goes or program.ask("sys.setprofile(None)") == "None"
        session.command_stop()
        (arena,) = session.wait(QUIET)
        # From 3.12 on there is room for several; on 3.8 nothing tells a thread that has none any more from one that never had.
        minor = MINOR[interpreter]
        assert arena.header["threads_taken"] == (minor < 12 and not (goes and minor == 8))


@every_build
def test_filters(interpreter: str, tmp_path: Path) -> None:
    program = "import json, json.decoder, os.path\ndef f(): json.loads('[1]'); os.path.join('a', 'b')\nfor _ in range(3): f()"
    for number, (options, functions, gone) in enumerate(
        [
            ({"include": ["json"]}, {"loads", "decode"}, {"f", "join"}),
            ({"exclude": ["json.decoder"]}, {"f", "loads", "join"}, {"decode"}),
            ({"include": ["*/json/*"], "exclude": ["json.decoder"]}, {"loads"}, {"f", "decode", "join"}),
            ({"max_depth": 2}, {"f"}, {"loads", "decode", "join"}),
        ]
    ):
        session = Session(tmp_path / str(number), **options)
        run(session, interpreter, "-c", program)
        (arena,) = session.arenas()
        names = {arena.functions[n].name for n in arena.events["function"].tolist()}
        assert functions <= names and not gone & names, (options, names)
        assert not unbalanced(arena.events)
        for key, count in arena.counts().items():
            assert count == 3 or ":f:" not in key


FILES = """/usr/lib/python3.11/json/decoder.py /usr/lib/python3.11/json/__init__.py /home/a/main.py main.py /x/__init__.py
        /v/lib/python3.12/site-packages/torch/nn/functional.py /usr/lib/python3/dist-packages/a/b.py <string> <frozen>
        /usr/lib/python311.zip/json/tool.py /usr/lib/python3.11.zip/json/tool.py python3/a.py /python3/ /python3//x.py
        /a/site-packages/ /a/site-packages/b/site-packages/c.d.e.py /a/b.c/d /a/.hidden /a/x.tar.gz /a/x. /a/x.p-y
        /python3.x/m.py /python3./m.py /a/__init__.cpython-311.so /site-packages/__init__.py /site-packages/a/__init__.pyc
        /a/n\u00e4me.py a/ / /v/lib/python3.13t/json/decoder.py /python3t/x.py /python3.13tt/x.py"""


def test_module_names_are_those_of_the_tracer(tmp_path: Path) -> None:
    for file in FILES.split():
        for pattern, wanted in ((module_of(file), True), (module_of(file) + "x", False)):
            if not pattern or "/" in pattern:
                continue
            session = Session(tmp_path / "session", include=[pattern.replace("[", "[[]")])
            name = next(iter(PYTHONS))
            run(session, name, "-c", f"exec(compile('def f(): pass\\nf()', {file!r}, 'exec'))")
            (arena,) = session.arenas()
            assert (file in {function.file for function in arena.functions.values()}) == wanted, (file, pattern)
            shutil.rmtree(session.directory)


@every_build
def test_a_full_arena_drops_events_and_counts_them(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", arena_bytes=1, chunk_records=1000)
    run(session, interpreter, "-c", "def step(): pass\nfor _ in range(5000): step()")
    (arena,) = session.arenas()
    assert arena.header["chunks"] == 1
    assert len(arena.events) == 1000
    assert arena.header["dropped"] >= 9000


@every_build
def test_every_event_has_its_number_within_its_thread(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", chunk_records=256)
    run(session, interpreter, "-c", "import threading\n" + LEAVES)
    (arena,) = session.wait(QUIET)
    by_thread: dict[int, list] = {}
    for chunk in arena.chunks:
        assert (chunk["stream"], chunk["record_bytes"]) == (CALLS, 16)
        by_thread.setdefault(int(chunk["thread"]), []).append(chunk)
    assert sorted(by_thread) == list(range(1, 5))
    for chunks in by_thread.values():
        assert len(chunks) > 1 and len({int(chunk["tid"]) for chunk in chunks}) == 1
        ends = [int(chunk["first"] + chunk["count"]) for chunk in chunks]
        assert [int(chunk["first"]) for chunk in chunks] == [0, *ends[:-1]]
    session.close()


@every_build
def test_a_program_that_waits_for_chunks_loses_nothing(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", arena_bytes=1, chunk_records=1000, wait_ms=60_000)
    with attached(interpreter, "def step(): pass\ndef steps():\n  for _ in range(5000): step()\nserve()") as program:
        program.load(session)
        assert program.process.stdin is not None and program.process.stdout is not None
        program.process.stdin.write("steps()\n")
        steps = 0
        end = time.monotonic() + PATIENCE_S
        while steps < 4500:
            assert time.monotonic() < end
            (arena,) = session.arenas()
            if len(arena.events) == 1000:
                steps += int(((arena.events["kind"] == ENTRY) & [arena.functions[n].name == "step" for n in arena.events["function"].tolist()]).sum())
                arena.give_back(0)
            time.sleep(0.001)
        assert arena.header["dropped"] == 0 and arena.header["waited_ns"] > 0
        session.command_stop()  # also wakes one that waits for a chunk nobody will give back
        session.wait(QUIET)
        assert program.process.stdout.readline() == "None\n"
