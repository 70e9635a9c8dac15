"""What the preloaded agent reports of objects: of which functions, what it keeps to itself, and that neither it nor the program comes to harm."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pytrace_ebpf.record.filters import REDACTED
from pytrace_ebpf.record.output.observed_rows import observed_table
from pytrace_ebpf.trace.schema import OBSERVED
from tests.agent_arena import ACTIVE, QUIET, Arena, Session
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import MINOR, attached, built, every_python, run

pytestmark = built


def rows(arena: Arena) -> list[dict]:
    """Rows of `observed`, in the order written by each thread; `ts` is the number of the event."""
    found = []
    for head, values in arena.values:
        names = {name: np.array([arena.names.get(number) for number in values[name].tolist()], object) for name in ("name", "type")}
        who = {"ts": values["event"].astype(np.int64), "pid": np.full(len(values), 1, np.int32), "tid": np.full(len(values), head["tid"], np.int32)}
        found += observed_table(OBSERVED, {**who, **names, "record": values}).to_pylist()
    return found


def recorded(session: Session, interpreter: str, program: str, *words: str) -> list[dict]:
    path = session.directory / "shop.py"
    path.write_text(program)
    run(session, interpreter, str(path), *words)
    (arena,) = session.arenas()
    assert arena.header["values_dropped"] == arena.header["unnamed"] == 0
    return rows(arena)


ACCOUNT = """
class Account:
    def login(self, user, password, Api_Key=None, *, SESSION_TOKEN=b"", **credentials): return user
    def token(self): return "given-hunter7"
def fails_secretly(): raise ValueError("raised-hunter8")
def mine(pin, note): return note
account = Account()
"""
SECRETS = f"""{ACCOUNT}
account.login("me", "hunter1", Api_Key=["hunter2"], SESSION_TOKEN=b"hunter3", x="hunter4")
account.token()
try: fails_secretly()
except ValueError: pass
mine("hunter5", "said")
"""


@every_python
def test_a_secret_never_leaves_the_program(interpreter: str, tmp_path: Path) -> None:
    found = recorded(Session(tmp_path / "s", args=["shop"], redact=[*REDACTED, "PIN"]), interpreter, SECRETS)
    told = {(row["name"], row["type"]): (row["value"], row["shape"], row["status"]) for row in found if row["name"]}
    nothing = (None, None, "redacted")
    assert told[("password", "str")] == told[("Api_Key", "list")] == told[("SESSION_TOKEN", "bytes")] == told[("pin", "str")] == nothing
    assert told[("user", "str")] == ("me", [2], "complete") and told[("note", "str")][0] == "said" and told[("credentials", "dict")] == nothing
    assert {row["status"] for row in found if row["what"] == "return" and row["type"] == "str"} == {"redacted", "complete"}
    (arena,) = (tmp_path / "s").glob("*.arena")
    content = arena.read_bytes()
    assert b"hunter" not in content and b"Account" in content


def test_names_are_redacted_only_where_they_are_asked_to_be(tmp_path: Path) -> None:
    found = recorded(Session(tmp_path / "s", args=["shop"]), next(iter(MINOR)), SECRETS)
    assert {row["value"] for row in found if row["name"] in ("password", "SESSION_TOKEN", "pin")} == {"hunter1", "hunter3", "hunter5"}


CLASSES = """
def free(a): return a
class Cart:
    def add(self, b): return Cart.inner(b)
    @staticmethod
    def inner(c): return [each for each in (c,)]
class Order:
    def add(self, d): return d
free(1); Cart().add(2); Order().add(3)
import json; json.loads("[1]")
"""
PATTERNS = {
    "shop": "abcd", "sh*": "abcd", "*/shop.py": "abcd", "*/other.py": "", "shop.free": "a",
    "free": "a", "fre": "", "add": "bd", "Cart.add": "b", "Cart.*": "bc", "shop.py": "abcd", "s/shop.py": "abcd",
    "./s/shop.py": "abcd", "__main__": "abcd", "__main__.Order.*": "d", "s.shop": "abcd", "s.shop.Order.add": "d", "s": "", "shop.*.add": "bd", "shop.Cart.*": "bc", "*.inner": "c",
    "shop.Order.add": "d", "shop.Cart.nothing": "", "nowhere.*": "",
}  # fmt: skip


@every_python
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_name_modules_files_and_functions(interpreter: str, pattern: str, tmp_path: Path) -> None:
    found = recorded(Session(tmp_path / "s", args=[pattern]), interpreter, CLASSES)
    assert {row["name"] for row in found if row["name"] and row["name"] in "abcd"} == set(PATTERNS[pattern])


def test_of_several_patterns_each_counts(tmp_path: Path) -> None:
    found = recorded(Session(tmp_path / "s", args=["shop.free", "json.decoder"]), max(MINOR, key=lambda name: MINOR[name]), CLASSES)
    assert {"a", "s"} <= {row["name"] for row in found} and not {"b", "c", "d"} & {row["name"] for row in found}


@every_python
def test_values_for_which_there_is_no_room_are_counted_and_take_none_from_events(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", args=["shop.f"], include=["shop"], chunk_records=256, arena_bytes=1 << 16)
    path = tmp_path / "s" / "shop.py"
    path.write_text("def f(a, b=1, *c): return a\nfor number in range(900): f(number)\n")
    run(session, interpreter, str(path))
    (arena,) = session.arenas()
    written = sum(len(values) for _, values in arena.values)
    assert arena.header["dropped"] == 0 and written + arena.header["values_dropped"] == 3600 and arena.header["values_dropped"] > 0
    assert 0 < written <= 8 * (4096 // 192)  # half of the chunks
    for head, values in arena.values:
        assert head["record_bytes"] == 192 and (np.diff(values["event"].astype(np.int64)) >= 0).all()
        of_calls = Counter(values["event"][values["what"] == 0].tolist())
        assert set(of_calls.values()) == {3}  # all that a call was given, or nothing


THREADS = """
import gc, random, sys, threading, weakref
sys.setswitchinterval(1e-5)
class Node:
    def __init__(self): self.me = self; self.items = []
    def __del__(self): shared.append(len(shared) % 7); del shared[: len(shared) // 2]
class Text(str): pass
shared, table, over = [], {}, threading.Event()
def seen(a, b, *rest, c=None, **more):
    if c == 3: raise KeyError("x" * (len(rest) * 50))
    return lambda: (a, more)
def yields(a, b):
    yield b
    return a
def mutates(seed):
    random.seed(seed)
    while not over.is_set():
        shared.append(Node()); table[random.random()] = [Node()] * random.randrange(9)
        if len(table) > 50: table.clear()
        if len(shared) > 100: shared.clear()
        if not random.randrange(50): gc.collect()
def calls(seed):
    choose = random.Random(seed)
    for number in range(3000):
        kind = type(f"Made{number % 50}", (choose.choice((list, dict, Text, int, object, KeyError)),), {})
        things = [shared, table, kind(), "\\ud800" * choose.randrange(99), 1 << choose.randrange(9000), -number, b"\\0" * choose.randrange(300), Node(), kind]
        try:
            seen(choose.choice(things), shared[-1:] or table, *things[: choose.randrange(9)], c=choose.randrange(4), x=kind)
        except KeyError:
            pass
        for each in yields(choose.choice(things), choose.choice(things)): pass
threads = [threading.Thread(target=target, args=(seed,)) for seed, target in enumerate((mutates, mutates, calls, calls, calls))]
for thread in threads: thread.start()
for thread in threads[2:]: thread.join()
over.set()
for thread in threads: thread.join()
print("whole")
"""


@every_python
def test_objects_that_other_threads_change_and_free_meanwhile(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", args=["shop.seen", "shop.yields"], wait_ms=0)
    path = tmp_path / "s" / "shop.py"
    path.write_text(THREADS)
    assert run(session, interpreter, str(path)) == "whole\n"
    (arena,) = session.arenas()
    found = rows(arena)
    known = {
        "list", "dict", "str", "int", "bytes", "Node", "type", "tuple", "function", "NoneType", "KeyError", "float", "Text", *(f"Made{n}" for n in range(50)),
    }  # fmt: skip
    assert {row["type"] for row in found} - known <= {None} and len(found) + arena.header["values_dropped"] > 50000
    whats = Counter(row["what"] for row in found)
    assert min(whats[what] for what in ("argument", "return", "yield", "raised")) > 1000
    assert {row["status"] for row in found if row["what"] != "raised"} <= {"complete", "cut"}
    for row in found:
        if row["type"] == "str" and row["status"] == "complete":
            assert row["value"] in ("\\ud800" * row["shape"][0], "x" * row["shape"][0])


FORKS = """
import os, sys, threading
def seen(a): return a
seen("before")
def in_thread(): seen("thread")
thread = threading.Thread(target=in_thread); thread.start(); thread.join()
child = os.fork()
seen("child" if not child else "parent")
if child: os.waitpid(child, 0)
"""


@every_python
def test_threads_and_forked_children_tell_theirs(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", args=["shop.seen"])
    path = tmp_path / "s" / "shop.py"
    path.write_text(FORKS)
    run(session, interpreter, str(path))
    found = [[(row["what"], row["value"]) for row in rows(arena)] for arena in session.arenas()]
    twice = {value: [("argument", value), ("return", value)] for value in ("before", "thread", "parent", "child")}
    assert sorted(found, key=len) == [twice["child"], [*twice["before"], *twice["parent"], *twice["thread"]]] or sorted(found, key=len) == [
        twice["child"], [*twice["before"], *twice["thread"], *twice["parent"]],
    ]  # fmt: skip


def test_a_second_session_names_everything_anew(tmp_path: Path) -> None:
    interpreter = max(MINOR, key=lambda name: MINOR[name])
    first, second = Session(tmp_path / "1", args=["*.seen"]), Session(tmp_path / "2", args=["*.seen", "*.other"])
    with attached(interpreter, "def seen(a): return a\ndef other(b): return b\nserve()") as program:
        program.load(first)
        assert program.ask("seen(1)") == "1" and program.ask("other(2)") == "2"
        first.command_stop()
        (arena,) = first.wait(QUIET)
        assert [(row["name"], row["value"]) for row in rows(arena)] == [("a", "1"), (None, "1")]
        first.close()
        assert program.ask(f"begin {second.directory}") == "0"
        second.wait(ACTIVE)
        assert program.ask("seen('x')") == "x" and program.ask("other(None)") == "None"
        second.command_stop()
        (arena,) = second.wait(QUIET)
        assert [(row["name"], row["type"], row["value"]) for row in rows(arena)] == [
            ("a", "str", "x"), (None, "str", "x"), ("b", "NoneType", "None"), (None, "NoneType", "None"),
        ]  # fmt: skip
        second.close()


ARRAYS = """
import numpy
class Mine(numpy.ndarray): pass
def seen(a): return None
names = ("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 longdouble complex64 complex128 clongdouble object "
         "datetime64[s] timedelta64[ms]").split()
arrays = [numpy.zeros((2, 3), name) for name in names]
arrays += [numpy.zeros(4, "S5"), numpy.zeros(4, "U5"), numpy.zeros(3, [("x", "i4")]), numpy.zeros(()), numpy.zeros((0, 7)), numpy.zeros((1,) * 20)]
arrays += [numpy.zeros((1,) * 21), numpy.arange(10)[::2], numpy.zeros((4, 5)).T, numpy.zeros((2, 2)).view(Mine), numpy.asmatrix([[1, 2]])]
arrays += [numpy.ma.zeros(3), numpy.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])]
for array in arrays: seen(array)
seen(numpy.float64(1.5)); seen(numpy.int64(3)); seen(numpy.dtype("f4")); seen(numpy.str_("é"))
for array in arrays: print(type(array).__qualname__, array.dtype.name.rstrip("0123456789") if array.dtype.kind in "SUV" else array.dtype.name, *array.shape)
"""
_RENAMED = {"datetime64[s]": "datetime64", "timedelta64[ms]": "timedelta64", "longdouble": "float128", "clongdouble": "complex256", "record": "void"}


def test_arrays_have_their_type_element_type_and_shape(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    session = Session(tmp_path / "s", args=["shop.seen"])
    path = tmp_path / "s" / "shop.py"
    path.write_text(ARRAYS)
    done = subprocess.run([sys.executable, str(path)], env=session.preloaded, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    (arena,) = session.arenas()
    found = [row for row in rows(arena) if row["what"] == "argument"]
    expected = [line.split() for line in done.stdout.splitlines()]
    assert len(expected) == 32 and len(found) == len(expected) + 4
    for row, (kind, dtype, *shape) in zip(found, expected, strict=False):
        assert row["type"] == kind and row["shape"] == [*map(int, shape)][:20] and row["value"] is None
        assert {_RENAMED.get(name, name) for name in (row["dtype"], dtype)} == {_RENAMED.get(dtype, dtype)}
        assert row["status"] == ("complete" if len(shape) <= 20 else "cut")
    assert [(row["type"], row["value"], row["shape"]) for row in found[-4:]] == [
        ("float64", "1.5", None), ("int64", None, None), ("Float32DType", None, None), ("str_", "é", [1]),
    ]  # fmt: skip
