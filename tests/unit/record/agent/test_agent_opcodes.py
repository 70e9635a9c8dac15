"""`--opcodes exact`: as many instructions as the interpreter itself reports."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pytrace_ebpf.trace.opcodes import STATES, instructions, name_of
from tests.agent_arena import ACTIVE, ENTRY, QUIET, Arena, Session, assert_balanced
from tests.unit.agent_pythons import MINOR, PYTHONS, TARGETS, attached, built, every_python, recorded, refused_for_a_tracer, run, truth

pytestmark = built
PROGRAMS = ["lines", "generators", "exceptions", "callbacks", "coroutines", "closures", "call_sites"]
RESUMABLE = 0x20 | 0x80 | 0x200  # CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def counted(arena: Arena, file: str) -> Counter[str]:
    """By function, line and number, as opcode_truth.py keys them."""
    found = Counter[str]()
    for record in arena.opcodes:
        function = arena.functions[int(record["function"])]
        if function.file == file:
            found[f"{function.name}:{function.first_line}:{record['line']}:{record['opcode']}"] += int(record["count"])
    return found


def without_resume(found: Counter[str], arena: Arena, file: str, interpreter: str) -> Counter[str]:
    """From 3.12 on the interpreter does not report RESUME, which the agent counts with the calls: of plain functions one a call."""
    if MINOR[interpreter] < 12:
        return found
    resumes = {key: count for key, count in found.items() if name_of(f"3.{MINOR[interpreter]}", int(key.rpartition(":")[2]))[0] == "RESUME"}
    begun = Counter[str]()
    for number, count in zip(
        *map(np.ndarray.tolist, np.unique(arena.events["function"][arena.events["kind"] == ENTRY], return_counts=True)), strict=True
    ):
        function = arena.functions[number]
        if function.file == file and not function.flags & RESUMABLE:
            begun[f"{function.name}:{function.first_line}"] += count
    of = Counter[str]()
    for key, count in resumes.items():
        of[":".join(key.split(":")[:2])] += count
    assert of and {key: begun[key] for key in of if key in begun} == {key: of[key] for key in of if key in begun}
    return found - Counter(resumes)


@every_python
@pytest.mark.parametrize("program", PROGRAMS)
def test_they_are_those_that_the_interpreter_reports(interpreter: str, program: str, tmp_path: Path) -> None:
    file = str(TARGETS / f"{program}.py")
    expected = truth(interpreter, "opcode_truth", file)
    assert expected
    arena = recorded(Session(tmp_path / "session", opcodes=1), interpreter, file)
    found = without_resume(counted(arena, file), arena, file, interpreter)
    assert {key: (found[key], expected.get(key, 0)) for key in {*found, *expected} if found[key] != expected.get(key, 0)} == {}


@every_python
def test_without_the_option_there_are_none(interpreter: str, tmp_path: Path) -> None:
    assert not len(recorded(Session(tmp_path / "session"), interpreter, str(TARGETS / "lines.py")).opcodes)


@every_python
def test_patterns_choose_functions_and_filters_hold(interpreter: str, tmp_path: Path) -> None:
    file = str(TARGETS / "lines.py")
    all_of = truth(interpreter, "opcode_truth", file)
    some = {key: count for key, count in all_of.items() if key.split(":")[0] in ("fib", "area")}
    patterns = {"opcodes_of": ["lines.fib", "lines.Shape.area"]}
    arena = recorded(Session(tmp_path / "some", opcodes=1, **patterns), interpreter, file)
    assert without_resume(counted(arena, file), arena, file, interpreter) == some
    assert not counted(recorded(Session(tmp_path / "none", opcodes=1, exclude="lines"), interpreter, file), file)
    deep = recorded(Session(tmp_path / "deep", opcodes=1, max_depth=1, lines=1, c_calls=1), interpreter, file)
    assert {key: count for key, count in without_resume(counted(deep, file), deep, file, interpreter).items() if key in some} == some


WARM = """
import time
class Box:
    def __getattr__(self, name):
        return 1
def step(n, box):
    total = 0
    for k in range(n):
        total = total + k
        total = total + box.x
    return total
step(200, Box())
serve()
"""


@every_python
def test_attached_in_the_middle_the_forms_are_those_from_before(interpreter: str, tmp_path: Path) -> None:
    """From 3.11 on: what it had specialized, what it had failed to, and of what ran for the first time nothing."""
    session, version = Session(tmp_path / "session", opcodes=1), f"3.{MINOR[interpreter]}"
    with attached(interpreter, WARM) as process:
        process.load(session)
        assert process.ask("step(10, Box())") == "55"
        assert process.ask("(lambda a, b: a + b)(1, 2)") == "3"
    (arena,) = session.wait(QUIET)
    assert_balanced(arena)
    known, found = instructions(version), {}
    for record in arena.opcodes:
        function = arena.functions[int(record["function"])]
        name, general = known.names[record["form"]], known.names[record["opcode"]]
        state = STATES[int(known.states(record["opcode"], record["form"]))]
        if (
            function.file == "<string>"
            and (function.name, state) not in (("step", "never"), ("serve", state))
            and general in ("BINARY_OP", "BINARY_ADD", "LOAD_ATTR", "FOR_ITER")
        ):
            line = int(record["line"]) - function.first_line
            found[function.name, line, general] = (name if state == "specialized" else state, int(record["count"]))
    if MINOR[interpreter] < 11:
        assert found == {("<lambda>", 0, "BINARY_ADD"): ("never", 1)}
        return
    assert found["step", 3, "BINARY_OP"] == ("BINARY_OP_ADD_INT", 10)
    assert found["step", 4, "BINARY_OP"] == ("BINARY_OP_ADD_INT", 10)
    assert found["<lambda>", 0, "BINARY_OP"] == ("unknown", 1)
    if MINOR[interpreter] < 14:
        assert found["step", 4, "LOAD_ATTR"] == ("generic", 10)
    if MINOR[interpreter] >= 12:
        assert found["step", 2, "FOR_ITER"] == ("FOR_ITER_RANGE", 11)


@every_python
def test_it_leaves_nothing_behind(interpreter: str, tmp_path: Path) -> None:
    """And what runs on is specialized again."""
    program = """
import sys, threading, dis
def step(n):
    total = 0
    for k in range(n):
        total = total + k
    return total
def left():
    found = [sys.gettrace(), sys.getprofile(), threading._trace_hook]
    if sys.version_info >= (3, 12):
        found += [name for name in map(sys.monitoring.get_tool, range(6)) if name]
    if sys.version_info >= (3, 11):
        names = {each.opname for each in dis.get_instructions(step, adaptive=True)}
        found += [name for name in names if name.startswith("INSTRUMENTED")]
        assert "BINARY_OP_ADD_INT" in names, names
    return found
serve()
"""
    session = Session(tmp_path / "session", opcodes=1)
    with attached(interpreter, program) as process:
        process.load(session)
        assert process.ask("step(100)") == "4950"
        session.command_stop()
        session.wait(QUIET)
        before = session.arenas()[0].opcodes["count"].sum()
        assert process.ask("step(1000)") == "499500"
        assert process.ask("left()") == "[None, None, None]"
        second = Session(tmp_path / "second", opcodes=1)
        assert process.ask(f"begin {second.directory}") == "0"
        second.wait(ACTIVE)
        assert process.ask("step(10)") == "45"
    assert session.arenas()[0].opcodes["count"].sum() == before
    (arena,) = second.wait(QUIET)
    assert max(counted(arena, "<string>").values()) >= 10


ENDS = {
    "os._exit(0)": 0,
    "os.kill(os.getpid(), 9)": -9,
    "os.execv(sys.executable, [sys.executable, '-c', 'pass'])": 0,
}


@every_python
@pytest.mark.parametrize("ends", ENDS)
def test_a_program_that_ends_at_once_has_counted_all(interpreter: str, ends: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", opcodes=1, follow=0)
    run(session, interpreter, "-c", f"import os, sys\ndef step():\n    for k in range(1000):\n        pass\nstep()\n{ends}\n", code=ENDS[ends])
    found = counted(session.arenas()[0], "<string>")
    assert max(count for key, count in found.items() if key.startswith("step:2:3:")) == 1001


@every_python
def test_a_forked_child_counts_for_itself(interpreter: str, tmp_path: Path) -> None:
    program = "import os\ndef step(n):\n    a = n\n    return a\nstep(1)\nif os.fork():\n    os.wait()\nelse:\n    step(1)\n    step(2)\n"
    session = Session(tmp_path / "session", opcodes=1)
    run(session, interpreter, "-c", program)
    found = [counted(arena, "<string>") for arena in session.arenas()]
    assert sorted(max(count for key, count in each.items() if key.startswith("step:2:3:")) for each in found) == [1, 2]


OWN = """
import sys
seen = []
def own(frame, event, argument):
    frame.f_trace_opcodes = True
    seen.append(event)
    return own
def step():
    a = 1
    return a
def traced():
    sys.settrace(own)
    step()
    sys.settrace(None)
step()
traced()
step()
assert "line" in seen, seen
print("fine")
"""


@every_python
def test_a_tracer_of_the_programs_own_is_not_disturbed(interpreter: str, tmp_path: Path) -> None:
    """Up to 3.11 there can be but one, and later CPython may forget who asked first: what is not counted is known to be lost."""
    session = Session(tmp_path / "session", opcodes=1)
    assert run(session, interpreter, "-c", OWN) == "fine\n"
    (arena,) = session.arenas()
    assert_balanced(arena)
    times = {count for key, count in counted(arena, "<string>").items() if key.startswith("step:8:9:")}
    if MINOR[interpreter] < 12:
        assert times == {2} and arena.header["opcodes_dropped"] > 0
    else:
        assert times == {3} or (max(times) < 3 and arena.header["opcodes_dropped"] > 0)


@pytest.mark.parametrize("interpreter", [name for name in PYTHONS if MINOR[name] < 12])
def test_a_tracer_that_was_there_first_is_named(interpreter: str, tmp_path: Path) -> None:
    assert b"leave out --lines and --opcodes" in refused_for_a_tracer(Session(tmp_path / "session", opcodes=1), interpreter)


CHURN = r"""
import gc, random, sys, threading
def make(number, size):
    source = f"def made_{number % 7}(n):\n    total = 0\n" + "    total = total + n\n" * size + "    return total\n"
    names = {}
    exec(compile(source, f"made{number % 11}", "exec"), names)
    return names[f"made_{number % 7}"]
def step(n):
    return n + 1
sizes = []
def churn(seed):
    kept = []
    random_ = random.Random(seed)
    for number in range(400):
        made = make(random_.randrange(100), random_.choice([1, 3, 50, 400]))
        sizes.append(made(2) // 2)
        kept.append(made)
        while len(kept) > random_.randrange(1, 9):
            kept.pop(random_.randrange(len(kept)))
        step(number)
        if number % 90 == 0:
            gc.collect()
def gen(n):
    for k in range(n):
        yield k
threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(3)]
sys.setswitchinterval(1e-5)
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert sum(gen(50)) == 1225
print(sum(sizes))
"""


@every_python
def test_code_that_is_compiled_and_discarded_meanwhile(interpreter: str, tmp_path: Path) -> None:
    """Addresses come again: nothing is counted as another's, and the same text has the same records however often it is compiled."""
    session = Session(tmp_path / "session", opcodes=1)
    additions = int(run(session, interpreter, "-c", CHURN))
    (arena,) = session.arenas()
    assert arena.header["opcodes_dropped"] == arena.header["dropped"] == 0
    assert_balanced(arena)
    places = Counter(tuple(int(record[name]) for name in ("function", "line", "opcode", "form")) for record in arena.opcodes)
    assert max(places.values()) == 1
    assert max(count for key, count in counted(arena, "<string>").items() if key.startswith("step:")) == 1200
    made = {number for number, function in arena.functions.items() if function.name.startswith("made_")}
    adds = [number for number in range(256) if name_of(f"3.{MINOR[interpreter]}", number)[0] in ("BINARY_OP", "BINARY_ADD")]
    assert len(made) <= 7 * 11
    assert additions == sum(int(each["count"]) for each in arena.opcodes if int(each["function"]) in made and int(each["opcode"]) in adds)


@every_python
def test_what_has_no_room_is_counted_as_lost(interpreter: str, tmp_path: Path) -> None:
    """In half of so small an arena there is one chunk for records of instructions."""
    session = Session(tmp_path / "session", opcodes=1, chunk_records=256, arena_bytes=4 * 4096, wait_ms=0)
    run(session, interpreter, str(TARGETS / "lines.py"))
    (arena,) = session.arenas()
    assert 0 < len(arena.opcodes) <= 2 * 4096 // 32
    assert arena.header["opcodes_dropped"] > 0
