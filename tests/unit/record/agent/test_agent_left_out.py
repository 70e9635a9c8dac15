"""Functions that the tracer has the agent leave out while it records: what is written then, and after; on every Python at hand."""

from collections import Counter
from pathlib import Path

import pytest

from pytrace_ebpf.trace.schema import CallKind
from tests.agent_arena import ENTRY, OPEN, QUIET, RESUME, Arena, Session, assert_balanced
from tests.unit.agent_pythons import attached, built, every_python

pytestmark = built

PROGRAM = """
import ctypes, functools, os, signal, threading
def hot(n): return n
def cold(n): return hot(n)
def calls(n):
    for i in range(n): cold(i)
    return n
def hot_generator(n):
    for i in range(n): yield i
def through(n): return sum(hot_generator(n))
def hot_recursion(n, then): return then() if not n else hot_recursion(n - 1, then)
def hot_wrapper(function, *arguments): return function(*arguments)
def fails(): raise KeyError
def caught(n):
    for _ in range(n):
        try: hot_wrapper(fails)
        except KeyError: pass
    return n
def forks(n):
    pid = os.fork()
    if pid: return os.waitpid(pid, 0)[1]
    try: calls(n)
    finally: os._exit(0)
def in_a_thread(n):
    thread = threading.Thread(target=calls, args=(n,)); thread.start(); thread.join()
    return n
def nested():
    print("nested", flush=True)
    for line in iter(sys.stdin.readline, "end\\n"): print(eval(line), flush=True)
    return "left"
def hot_nested():
    print("nested", flush=True)
    for line in iter(sys.stdin.readline, "end\\n"): print(eval(line), flush=True)
    return "left"
def endless_hot():
    while True: yield
steps = endless_hot()
def interrupted(kind):
    for _ in iter(functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGUSR1), 1):
        return hot(3) if kind == "call" else next(steps)
signal.signal(signal.SIGUSR1, lambda *_: nested())
def below(): serve()
def deep():
    try: hot_wrapper(below)
    finally: pass
def main():
    warm = calls(1), through(1), caught(1), in_a_thread(1), hot_recursion(3, int)
    deep()
    serve()
main()
"""
HOT = ("hot", "endless_hot", "hot_nested", "hot_generator", "hot_recursion", "hot_wrapper")
BEGINS, ENDS = (ENTRY, OPEN, RESUME), (CallKind.RETURN, CallKind.UNWIND, CallKind.YIELD)


def named(arena: Arena, kinds: tuple[int, ...]) -> Counter[str]:
    counts = Counter[str]()
    for key, count in arena.counts(*kinds).items():
        counts[key.split(":")[-2].split(".")[-1]] += count
    return counts


def added(arena: Arena, before: Arena) -> Counter[str]:
    """Calls by name that began since."""
    return named(arena, BEGINS) - named(before, BEGINS)


def open_now(arena: Arena) -> Counter[str]:
    begun, ended = named(arena, BEGINS), named(arena, ENDS)
    return begun - ended


@every_python
def test_they_are_not_written_until_they_are_wanted_again_and_all_others_are(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        for word in ("calls(2)", "through(2)", "caught(2)", "in_a_thread(2)", "hot_recursion(2, int)"):
            program.ask(word)
        session.leave_out(*HOT)
        (before,) = session.arenas()
        for word, answer in {"calls(7)": "7", "through(7)": "21", "caught(7)": "7", "in_a_thread(7)": "7", "hot_recursion(7, int)": "0"}.items():
            assert program.ask(word) == answer
        (out,) = session.arenas()
        during = added(out, before)
        assert not set(during) & set(HOT)
        assert (during["cold"], during["calls"], during["fails"], during["caught"], during["through"]) == (14, 2, 7, 1, 1)
        session.leave_out()
        assert program.ask("calls(5)") == "5" and program.ask("through(5)") == "10" and program.ask("caught(5)") == "5"
        again = added(session.arenas()[0], out)
        assert (again["hot"], again["cold"], again["hot_wrapper"], again["fails"]) == (5, 5, 5, 5)
        assert again["hot_generator"] == 6
        session.command_stop()
        (arena,) = session.wait(QUIET)
        assert_balanced(arena)


@every_python
def test_a_call_that_is_open_ends_when_it_does_where_calls_below_it_are_recorded(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        assert open_now(session.arenas()[0])["hot_wrapper"] == 1  # below() and serve() are above it
        program.ask("hot_wrapper(abs, 1)")
        session.leave_out("hot_wrapper")
        assert open_now(session.arenas()[0])["hot_wrapper"] == 1
        program.ask("hot_wrapper(abs, 1)")
        (arena,) = session.arenas()
        assert named(arena, BEGINS)["hot_wrapper"] == 2
        assert open_now(arena)["hot_wrapper"] == 1
        assert program.ask("'end' if not globals().update(serve=lambda: None) else 0") == "end"
        program.process.stdin.close()  # serve() returns, and with it all that is above
        program.process.stdin = None
        program.process.wait(20)
        (arena,) = session.arenas()
        assert not open_now(arena)["hot_wrapper"]
        assert_balanced(arena)


@every_python
@pytest.mark.parametrize("innermost", ["hot_nested()", "hot_recursion(2, hot_nested)"], ids=["just below", "far below"])
def test_a_call_below_the_depth_that_was_asked_for_is_neither_counted_twice_nor_forgotten(interpreter: str, innermost: str, tmp_path: Path) -> None:
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session", max_depth=7)  # the line's own code
        program.load(session)
        for out in (("hot_nested",), ("hot_nested", "hot_recursion"), ()):
            assert program.ask(innermost) == "nested"
            session.leave_out(*out)
            assert program.ask("end") == "left"
            (before,) = session.arenas()
            for _ in range(3):
                program.ask("cold(1)")
            since = added(session.arenas()[0], before)
            assert since["<module>"] == 3 and not {"cold", "hot"} & set(since)
        session.command_stop()
        (arena,) = session.wait(QUIET)
        assert_balanced(arena)


@every_python
def test_a_call_that_is_the_innermost_ends_there_and_then(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        program.ask("abs(1)")
        session.leave_out("serve", "below")  # waits for the next line; called below()
        now = open_now(session.arenas()[0])
        assert not now["serve"] and not now["below"] and now["deep"] == now["main"] == now["hot_wrapper"] == 1
        assert program.ask("calls(3)") == "3"
        session.command_stop()
        (arena,) = session.wait(QUIET)
        assert_balanced(arena)


@every_python
@pytest.mark.parametrize("innermost", ["nested", "hot_nested"], ids=["within which others are recorded", "that are the innermost"])
def test_calls_that_are_open_when_they_are_wanted_again(innermost: str, interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        for word in ("hot(1)", f"hot_recursion(1, {innermost})", "end", "hot_recursion(1, int)"):
            program.ask(word)
        for turn in range(3):
            session.leave_out(*HOT)
            (before,) = session.arenas()
            assert program.ask(f"hot_recursion(5, {innermost})") == "nested"
            assert program.ask("hot_recursion(5, int)") == "0"
            session.leave_out()
            (back,) = session.arenas()
            assert (added(back, before)["hot_recursion"], added(back, before)[innermost]) == ((0, 1) if innermost == "nested" else (6, 1))
            assert program.ask("hot_recursion(2, int)") == "0"
            if turn:  # out and back again meanwhile
                session.leave_out("hot_recursion")
                program.ask("hot_recursion(2, int)")
                session.leave_out()
            assert program.ask("end") == "left"
        session.command_stop()
        (arena,) = session.wait(QUIET)
        assert_balanced(arena)
        assert not open_now(arena)["hot_recursion"]


@every_python
@pytest.mark.parametrize("kind", ["call", "resume"])
def test_a_call_whose_frame_is_there_and_not_its_beginning_has_both_ends_or_none(kind: str, interpreter: str, tmp_path: Path) -> None:
    """A signal's handler runs between the two, and waits."""
    name = {"call": "hot", "resume": "endless_hot"}[kind]
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        program.ask("next(steps)"), program.ask("calls(2)")
        turns: list[tuple[str, ...]] = [HOT, (), HOT, HOT, ()]
        for turn, names in enumerate(turns):
            assert program.ask(f"interrupted({kind!r})") == "nested"
            session.leave_out(*names)
            assert program.ask("end") == ("3" if kind == "call" else "None")
            (after,) = session.arenas()
            assert_balanced(after)
            assert not open_now(after)[name], turn
        assert program.ask("calls(2)") == "2"
        session.command_stop()
        (arena,) = session.wait(QUIET)
        assert_balanced(arena)
        assert not open_now(arena)[name]


@every_python
def test_a_forked_child_has_all_of_its_calls(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        program.ask("calls(2)")
        session.leave_out("hot")
        assert program.ask("calls(2)") == "2"
        assert program.ask("forks(50)") == "0"
        (child,) = [arena for arena in session.arenas() if arena.header["forked_from"]]
        assert named(child, (ENTRY,))["hot"] == named(child, (ENTRY,))["cold"] == 50
        session.command_stop()


@every_python
def test_for_the_next_session_and_the_next_tool_nothing_is_left_out(interpreter: str, tmp_path: Path) -> None:
    watches = (
        'exec(\'import sys\\nseen = []\\nif hasattr(sys, "monitoring"):\\n  m = sys.monitoring\\n  m.use_tool_id(4, "next")\\n'
        "  m.register_callback(4, m.events.PY_START, lambda code, at: seen.append(code.co_name))\\n  m.set_events(4, m.events.PY_START)\\n"
        "  calls(3)\\n  m.set_events(4, 0)\\n  m.free_tool_id(4)', globals()) or seen.count('hot')"
    )
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "0")
        program.load(session)
        program.ask("calls(2)")
        session.leave_out("hot")
        program.ask("calls(2)")
        session.command_stop()
        session.wait(QUIET)
        has_monitoring = program.ask("hasattr(sys, 'monitoring')") == "True"
        assert program.ask(watches) == ("3" if has_monitoring else "0")
        again = Session(tmp_path / "1")
        assert program.ask(f"begin {again.directory}") == "0"
        again.wait(1)
        program.ask("calls(9)")
        again.command_stop()
        assert named(again.wait(QUIET)[0], (ENTRY,))["hot"] == 9


@every_python
def test_in_a_pause_nothing_is_written_and_after_it_open_calls_begin_anew(interpreter: str, tmp_path: Path) -> None:
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)
        program.ask("in_a_thread(3)")
        session.leave_out("hot_wrapper")
        for turn in range(3):
            session.leave_out(everything=True)
            (before,) = session.arenas()
            assert not open_now(before)
            assert program.ask("in_a_thread(5)") == "5" and program.ask("through(3)") == "3"
            assert program.ask("__import__('gc').collect() * 0") == "0"
            assert program.ask("hot_recursion(5, nested)") == "nested"
            session.leave_out(*(("hot",) if turn else ()))
            (out,) = session.arenas()
            assert len(out.events) - len(before.events) == sum(open_now(out).values())
            now = open_now(out)
            assert now["nested"] == now["main"] == now["deep"] == now["hot_wrapper"] == 1 and now["hot_recursion"] == 6
            assert program.ask("end") == "left"
            assert program.ask("in_a_thread(7)") == "7"
            during = added(session.arenas()[0], out)
            assert (during["calls"], during["cold"], during["hot"]) == (1, 7, 0 if turn else 7)
        session.command_stop()
        (arena,) = session.wait(QUIET)
        assert_balanced(arena)


@every_python
@pytest.mark.parametrize("pauses", [False, True], ids=["paused from outside", "paused by itself"])
def test_a_thread_that_ends_the_pause_by_itself_is_recorded_again(pauses: bool, interpreter: str, tmp_path: Path) -> None:
    """Where Python runs it comes to the pending call before the agent's own thread has the GIL."""
    with attached(interpreter, PROGRAM) as program:
        session = Session(tmp_path / "session")
        program.load(session)

        def look() -> None:
            assert program.ask("ctypes.PyDLL(library._name).pytrace_look_pending(None)") == "0"

        program.ask("calls(2)")
        for _ in range(2):
            session.leave_out(everything=True, look=look if pauses else None)
            (before,) = session.arenas()
            assert not open_now(before)
            assert program.ask("calls(5)") == "5"
            assert len(session.arenas()[0].events) == len(before.events)
            session.leave_out(look=look)
            (out,) = session.arenas()
            assert program.ask("calls(3)") == "3"
            during = added(session.arenas()[0], out)
            assert (during["calls"], during["cold"], during["hot"]) == (1, 3, 3)
        session.command_stop()
        (arena,) = session.wait(QUIET)
        assert_balanced(arena)


@every_python
def test_an_end_in_a_pause_leaves_nothing(interpreter: str, tmp_path: Path) -> None:
    left = (
        "[sys.monitoring.get_tool(i) for i in range(6) if sys.monitoring.get_tool(i)] if hasattr(sys, 'monitoring') else "
        "[hook for hook in (sys.getprofile(), threading._profile_hook) if hook]"
    )
    with attached(interpreter, PROGRAM) as program:
        for number in range(2):
            session = Session(tmp_path / str(number))
            if number:
                assert program.ask(f"begin {session.directory}") == "0"
                session.wait(1)
            else:
                program.load(session)
            program.ask("calls(4)")
            assert named(session.arenas()[0], (ENTRY,))["hot"] == 4
            session.leave_out(everything=True)
            session.command_stop()
            session.wait(QUIET)
            assert program.ask(left) == "[]" and program.ask("__import__('gc').callbacks") == "[]"
