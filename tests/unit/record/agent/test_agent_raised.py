"""What the preloaded agent reports of exceptions that leave functions: the line that the traceback has, also where one is raised anew by an instruction
without a line, and type and text as the program itself sees them, or that they are not known."""

import json
from collections import Counter
from pathlib import Path

import pytest

from pytrace_ebpf.trace.schema import CallKind
from tests.agent_arena import Session
from tests.unit.agent_pythons import MINOR, built, every_python, run
from tests.unit.record.agent.test_agent_values import rows

pytestmark = built

PROGRAM = """
import json
class Swallows:
    def __enter__(self): return self
    def __exit__(self, *error): return False
def raises(): raise KeyError("x")
def passes(): raises()
def in_c(): return int("x")
def finally_():
    try:
        passes()
    finally:
        len("")
def in_except():
    try:
        raises()
    except KeyError:
        raise ValueError
def anew():
    try:
        raises()
    except KeyError as error:
        del error
        raise
def unmatched():
    try:
        raises()
    except (ValueError, OSError):
        pass
def with_():
    with Swallows():
        in_c()
def deep():
    try:
        finally_()
    finally:
        try:
            in_except()
        except ValueError:
            pass
def generates():
    try:
        yield 1
    finally:
        len("")
def thrown():
    running = generates()
    next(running)
    running.throw(OSError(1))
def without_traceback():
    try:
        raises()
    except KeyError as error:
        raise error.with_traceback(None)
seen = []
for each in (raises, passes, in_c, finally_, in_except, anew, unmatched, with_, deep, thrown, without_traceback):
    try:
        each()
    except Exception as error:
        entry = error.__traceback__.tb_next
        while entry:
            seen.append([entry.tb_frame.f_code.co_name, entry.tb_lineno])
            entry = entry.tb_next
print(json.dumps(seen))
"""


def assert_lines_are_those_of_the_traceback(interpreter: str, session: Session) -> None:
    path = session.directory / "lines.py"
    path.write_text(PROGRAM)
    told = Counter(map(tuple, json.loads(run(session, interpreter, str(path)))))
    (arena,) = session.arenas()
    left = arena.events[arena.events["kind"] == CallKind.UNWIND]
    names = [arena.functions[number] for number in left["function"].tolist()]
    found = Counter((each.name, line) for each, line in zip(names, left["line"].tolist(), strict=True) if each.file == str(path))
    assert not told - found, told - found
    assert not [each for each in found if each[1] == 0]


@pytest.mark.parametrize("interpreter", [name for name, minor in MINOR.items() if minor >= 12])
def test_lines_are_those_of_the_traceback(interpreter: str, tmp_path: Path) -> None:
    assert_lines_are_those_of_the_traceback(interpreter, Session(tmp_path / "s"))


@every_python
def test_lines_of_observed_functions_are_those_of_the_traceback(interpreter: str, tmp_path: Path) -> None:
    assert_lines_are_those_of_the_traceback(interpreter, Session(tmp_path / "s", args=["lines"]))


NESTED = """
import functools, json, random, sys, threading
class Own(ValueError):
    def __init__(self, text): super().__init__(text); self.made = True
    def __str__(self): raise AssertionError("the program's code ran")
class Swallows:
    def __init__(self, swallows): self.swallows = swallows
    def __enter__(self): return self
    def __exit__(self, *error): return self.swallows
kept, left = [], {}
def of(error):
    first = error.args[0] if error.args else None
    return [type(error).__qualname__, first if isinstance(first, str) else None]
def noted(function):
    @functools.wraps(function)
    def called(*given):
        try: return function(*given)
        except BaseException as error:
            left[threading.get_native_id()].append([function.__name__, *of(error)])
            raise
    return called
@noted
def raises(r, depth):
    kind = r.randrange(9)
    text = "%x" % r.getrandbits(40)
    if kind == 0: raise KeyError(text)
    if kind == 1: raise Own(text)
    if kind == 2: return int(text + "z")
    if kind == 3: return {}[text]
    if kind == 4: raise OSError(2, text)
    if kind == 5: return getattr(len, text)
    if kind == 6: raise StopIteration
    if kind == 7: raise KeyboardInterrupt
    return [][depth]
def generates(r, depth):
    try:
        yield depth
        yield nested(r, depth)
    finally:
        quiet(r, depth)
@noted
def drives(r, depth):
    running = generates(r, depth)
    next(running)
    if r.random() < 0.5: return list(running)
    running.throw(Own("%x" % r.getrandbits(40)))
def quiet(r, depth):
    try: nested(r, depth - 1)
    except BaseException as error:
        kept.append(error)
        del kept[: r.randrange(2) * 5]
@noted
def finishes(r, depth):
    try: nested(r, depth)
    finally: quiet(r, depth)
@noted
def anew(r, depth):
    for again in range(3):
        try: nested(r, depth)
        except Exception:
            quiet(r, depth)
            if again == 2: raise
@noted
def kept_ones(r, depth):
    if kept: raise kept[r.randrange(len(kept))]
@noted
def converts(r, depth):
    try: nested(r, depth)
    except Exception as error: raise Own("%x" % r.getrandbits(40)) from error
@noted
def with_(r, depth):
    with Swallows(r.random() < 0.3):
        nested(r, depth)
@noted
def raises_of_caller(): raise
@noted
def in_helper(r, depth):
    try: nested(r, depth)
    except Exception: raises_of_caller()
@noted
def sorts(r, depth): return sorted([1, 2], key=lambda _: nested(r, depth))
KINDS = [raises, drives, finishes, anew, kept_ones, converts, with_, in_helper, sorts]
def nested(r, depth):
    return (r.choice(KINDS) if depth > 0 else raises)(r, depth - 1)
def program(seed):
    left[threading.get_native_id()] = []
    r = random.Random(seed)
    for _ in range(60): quiet(r, 5)
sys.setswitchinterval(1e-5)
program(1)
threads = [threading.Thread(target=program, args=(seed,)) for seed in (2, 3)]
for each in threads: each.start()
for each in threads: each.join()
print(json.dumps(left))
"""
NOTED = {function.split("(")[0] for function in NESTED.split("@noted\ndef ")[1:]}


@every_python
def test_an_exception_is_the_one_that_the_program_sees_or_is_not_known(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", args=["nested"])
    path = session.directory / "nested.py"
    path.write_text(NESTED)
    told = json.loads(run(session, interpreter, str(path)))
    (arena,) = session.arenas()
    assert arena.header["values_dropped"] == 0 and sum(map(len, told.values())) > 1000
    found: dict[str, list[list]] = {tid: [] for tid in told}
    for (head, _), row in zip(((head, each) for head, values in arena.values for each in values), rows(arena), strict=True):
        name = arena.functions[int(arena.threads[int(head["tid"])]["function"][row["ts"]])].name
        if row["what"] == "raised" and name in NOTED:
            found[str(head["tid"])].append([name, row["type"], row["value"]])
    for tid, seen in told.items():
        assert len(found[tid]) == len(seen)
        unknown = [[name, *rest] for (name, *rest), each in zip(found[tid], seen, strict=True) if [name, *rest] != each]
        assert all(each[1:] == [None, None] for each in unknown)
        # Up to 3.11: raised anew by a frame that was not the one to catch it, or raised elsewhere meanwhile.
        of_others = [each for each in unknown if each[0] != "raises_of_caller"]
        assert len(of_others) <= len(seen) / 20 if MINOR[interpreter] < 12 else not unknown
