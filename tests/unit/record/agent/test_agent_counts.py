"""What the preloaded agent records of the targets equals what their interpreter itself counts, on every Python at hand."""

import json
import math
import subprocess
from collections import Counter
from itertools import product
from pathlib import Path

from tests.agent_arena import ACTIVE, ENTRY, OPEN, QUIET, Session, unbalanced
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import BUILDS, TARGETS, built, every_build, run

pytestmark = built
PROGRAMS = [
    "callbacks",
    "closures",
    "coroutines",
    "exceptions",
    "fib",
    "generated",
    "generators",
    "many_threads",
    "names",
    "threads",
]


def truth(interpreter: str, program: str, *options: str) -> Counter[str]:
    words = [BUILDS[interpreter], str(TARGETS / "truth.py"), "--from-start", *options, str(TARGETS / f"{program}.py")]
    return Counter(json.loads(subprocess.run(words, capture_output=True, check=True, timeout=PATIENCE_S).stdout.splitlines()[-1]))


def of_program(program: str, counts: Counter[str]) -> dict[str, int]:
    return {key: count for key, count in counts.items() if key.startswith(f"{TARGETS}/{program}.py:")}


@every_build
def test_counts_are_those_of_the_interpreter(interpreter: str, tmp_path: Path) -> None:
    for program in PROGRAMS:
        session = Session(tmp_path / program)
        run(session, interpreter, str(TARGETS / f"{program}.py"))
        (arena,) = session.arenas()
        assert arena.header["state"] == QUIET
        assert arena.header["dropped"] == arena.header["unnamed"] == 0
        counts = of_program(program, arena.counts())
        expected = of_program(program, truth(interpreter, program))
        assert counts == expected, program
        for events in arena.threads.values():
            assert not unbalanced(events)
            assert (events["stamp"][1:] >= events["stamp"][:-1]).all()


@every_build
def test_lines_of_callers_are_those_of_the_interpreter(interpreter: str, tmp_path: Path) -> None:
    for program in ("call_sites", "callbacks", "coroutines", "exceptions", "generated", "many_threads"):
        session = Session(tmp_path / program)
        run(session, interpreter, str(TARGETS / f"{program}.py"))
        (arena,) = session.arenas()
        known = [str(TARGETS / f"{program}.py"), "<made>", "<string>", "<template"]
        counts, expected = (
            {key: count for key, count in sites.items() if all(any(f"{end}".startswith(file) for file in known) for end in key.split(" > "))}
            for sites in (arena.sites(), truth(interpreter, program, "--sites"))
        )
        assert counts == expected, program
        assert program != "call_sites" or len(counts) > 9000


@every_build
def test_recursion_up_to_the_limit(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    done = json.loads(run(session, interpreter, str(TARGETS / "recursion.py")).splitlines()[-1].removeprefix("done "))
    counts = Counter[str]()
    for key, count in of_program("recursion", session.arenas()[0].counts()).items():
        counts[key.split(":")[-2].split(".")[-1]] += count
    assert {name: counts[name] for name in done["calls"]} == done["calls"]


@every_build
def test_children_have_arenas_of_their_own(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    run(session, interpreter, str(TARGETS / "forks.py"))
    arenas = session.arenas()
    first = arenas[0].header["pid"]
    assert [arena.header["pid"] for arena in arenas].count(first) == 1
    forked = [arena for arena in arenas if arena.header["forked_from"] == first]
    assert len(forked) >= 1
    for arena in forked:
        (events,) = [events for tid, events in arena.threads.items() if tid == arena.header["pid"]]
        assert events["kind"][0] == OPEN
        assert not unbalanced(events)
    assert sum(sum(count for key, count in arena.counts().items() if ":step:" in key) for arena in arenas) == 226


@every_build
def test_children_are_left_alone_without_follow(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", follow=0)
    program = "import os, subprocess, sys\nprint(os.environ.get('LD_PRELOAD'))\npid = os.fork()\n" + (
        "def step(): pass\nfor _ in range(9): step()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)\n"
        "subprocess.run([sys.executable, '-c', 'def step(): pass\\nstep()'], check=True)"
    )
    assert run(session, interpreter, "-c", program) == "None\n"
    (arena,) = session.arenas()
    assert arena.counts()["<string>:step:4"] == 9


@every_build
def test_every_way_to_name_the_program(interpreter: str, tmp_path: Path) -> None:
    program = "def step(): pass\nfor _ in range(7): step()\n"
    (tmp_path / "module.py").write_text(program)
    for number, (words, stdin) in enumerate([(["-c", program], ""), (["-m", "module"], ""), (["-"], program), ([], program)]):
        session = Session(tmp_path / str(number))
        done = subprocess.run(
            [BUILDS[interpreter], *words],
            env=session.preloaded,
            input=stdin,
            text=True,
            cwd=tmp_path,
            check=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0
        counts = session.arenas()[0].counts()
        assert sum(count for key, count in counts.items() if key.endswith(":step:1")) == 7, words


@every_build
def test_exits_of_every_kind(interpreter: str, tmp_path: Path) -> None:
    for number, (program, code) in enumerate(
        [
            ("import sys; sys.exit(3)", 3),
            ("import os; os._exit(4)", 4),
            ("raise KeyError", 1),
            ("import threading, sys; t = threading.Thread(target=sys.exit); t.start(); t.join()", 0),
            ("import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", 0),
            ("import atexit\ndef last(): pass\natexit.register(last)", 0),
        ]
    ):
        session = Session(tmp_path / str(number))
        run(session, interpreter, "-c", program, code=code)
        (arena,) = session.arenas()
        assert arena.header["state"] == (ACTIVE if "_exit" in program else QUIET)
        if "atexit" in program:
            assert arena.counts()["<string>:last:2"] == 1


@every_build
def test_how_many_interpreters_there_were_is_told(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    program = (
        "try: import _interpreters as made\nexcept ImportError: import _xxsubinterpreters as made\nfor _ in range(3): made.destroy(made.create())"
    )
    run(session, interpreter, "-c", program)
    (arena,) = session.arenas()
    assert arena.header["interpreters"] == 1 + 3


@every_build
def test_a_killed_program_leaves_a_readable_arena(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    program = "import os\ndef step(): pass\nfor _ in range(40000): step()\nos.kill(os.getpid(), 9)"
    run(session, interpreter, "-c", program, code=-9)
    assert session.arenas()[0].counts()["<string>:step:2"] == 40000


def test_programs_that_are_no_python_are_left_alone(tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    done = subprocess.run(["sh", "-c", "echo fine; true"], env=session.preloaded, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr, session.arenas()) == ("fine\n", "", [])


@every_build
def test_nothing_happens_without_a_tracer_or_options(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    session.close()
    run(session, interpreter, "-c", "pass")
    assert not session.arenas()
    (session.directory / "options").unlink()
    run(session, interpreter, "-c", "pass")
    assert not session.arenas()


@every_build
def test_lines_that_entries_were_called_from_and_of_ends(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    program = "def f(n):\n if n:\n  return 1\n return 2\ndef g():\n  1 / 0\nf(1); f(0); f(1)\ntry:\n g()\nexcept ZeroDivisionError: pass"
    run(session, interpreter, "-c", program)
    (arena,) = session.arenas()
    lines = {
        name: [
            (int(kind), int(line))
            for function, kind, line in arena.events[["function", "kind", "line"]].tolist()
            if arena.functions[function].file == "<string>" and arena.functions[function].name == name
        ]
        for name in "fg"
    }
    assert lines == {"f": [(ENTRY, 7), (1, 3), (ENTRY, 7), (1, 4), (ENTRY, 7), (1, 3)], "g": [(ENTRY, 9), (4, 6)]}


@every_build
def test_resumes_and_yields_are_distinguished_from_calls_and_returns(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session")
    run(session, interpreter, "-c", RESUMES)
    (arena,) = session.arenas()
    kinds = dict.fromkeys(("plain", "generator", "asynchronous", "coroutine", "one"), "")
    for function, kind in arena.events[["function", "kind"]].tolist():
        about = arena.functions[function]
        if about.file == "<string>" and about.name in kinds:
            kinds[about.name] += "ER--UrY"[kind]
    assert kinds == {
        "plain": "ER",
        "generator": "EYrYrREYrUEU",  # to its end, thrown into, thrown into before it began
        "asynchronous": "EYrYrR",
        "coroutine": "EYrYrR",
        "one": "EYrREYrR",
    }


RESUMES = """
def plain(): pass
def generator():
    yield 1
    yield 2
async def asynchronous():
    yield 1
    yield 2
class Pause:
    def __await__(self): yield
async def coroutine():
    await Pause(); await Pause()
async def one(): await Pause()
def drive(coroutine):
    try:
        while True: coroutine.send(None)
    except StopIteration: pass
plain()
list(generator())
closed = generator(); next(closed)
try: closed.throw(KeyError)
except KeyError: pass
new = generator()
try: new.throw(KeyError)
except KeyError: pass
async def consume():
    async for _ in asynchronous(): pass
drive(consume()); drive(coroutine()); drive(one()); drive(one())
"""


# Functions of as many code objects as no cache holds, and one.
MANY = """
import sys
count = int(sys.argv[1])
space = {}
for number in range(count):
    exec(f"def f{number}(a):\\n    return a", space)
functions = [space[f"f{number * 7919 % count}"] for number in range(count)]
for _ in range(300_000 // count):
    for function in functions:
        function(1)
"""


@every_build
def test_one_event_in_a_thousand_is_timed_and_takes_longer_where_there_are_many_functions(interpreter: str, tmp_path: Path) -> None:
    each_ticks = dict[int, float]()
    for count, number in product((1, 10_000), range(3)):  # an interrupt within one of them adds more than hundreds of others take
        session = Session(tmp_path / f"{count}-{number}")
        run(session, interpreter, "-c", MANY, str(count))
        header = session.arenas()[0].header
        # Up to 3.11 as well where C code is called, which is only looked at.
        assert 600_000 / 1023.5 * 0.8 < header["timed"] <= 900_000 / 1023.5 * 1.2
        assert header["timed_code"] > 100 and header["timed_code_ns"] > 0
        each_ticks[count] = min(each_ticks.get(count, math.inf), header["timed_ticks"] / header["timed"])
    assert each_ticks[10_000] > 1.2 * each_ticks[1]
