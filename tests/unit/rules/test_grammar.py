"""A file of rules is read, or what is wrong in it is said with line and column."""

from pathlib import Path

import pytest

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.rules.file import read, read_text, shipped
from pytrace_ebpf.rules.grammar import WAITS, parsed
from pytrace_ebpf.rules.rule import COROUTINE, REQUEST, Form, Rule

MS = 1_000_000


def of(text: str) -> Rule:
    return parsed("r", text, {"query": ("a.run", "b.run")})


def test_each_form_is_read() -> None:
    assert (of("never f").form, of("never f").others) == (Form.NEVER, ())
    assert of("never 'never' or \"a b\" within g").functions == ("never", "a b")
    assert of("f only within a coroutine").others == (COROUTINE,)
    assert of("f only from shop").form is Form.ONLY_FROM
    assert of("f before g").scope == "thread" and of("f before g in the same task").scope == "task"
    then = of("every f then g or h within 1m30s in the same process")
    assert (then.form, then.others, then.limit_ns, then.scope) == (Form.THEN, ("g", "h"), 90_000 * MS, "process")
    assert (of("f takes at most 5ms").limit_ns, of("f takes at most 5ms").state) == (5 * MS, "wall")
    assert of("f takes at most 5ms gil-wait").state == "gil_wait"
    most = of("at most 20 query in one view")
    assert (most.most, most.functions, most.others) == (20, ("a.run", "b.run"), ("view",))
    assert (of("f raises only KeyError or a.B").exceptions, of("f raises nothing").exceptions) == (("KeyError", "a.B"), ())
    assert (of("f gets n in 1..").values, of("f gets n in -2..3.5").values) == ((1.0, None), (-2.0, 3.5))
    assert (of("f gets n of type int").type, of("f gets name matching 'a*'").matching) == ("int", "a*")
    assert of("no wait").kinds == WAITS and "gil" not in WAITS and "preempted" not in WAITS
    wait = of("no wait of io or sleep above 50ms in a coroutine")
    assert (wait.kinds, wait.limit_ns, wait.others) == (("io-read", "io-write", "net", "sleep"), 50 * MS, (COROUTINE,))
    assert of("no wait within g").others == ("g",)
    held = of("no wait of net while a lock of Pool.get is held")
    assert (held.locked, held.others, of("no wait while a lock is held").others) == (True, ("Pool.get",), ())
    assert of("at most 3 f in one request").others == of("never f within a request").others == (REQUEST,)
    assert of("at most 3 f in one 'request'").others == ("request",)


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("", 0, "it ends where never, every, at most, no wait, or a function follows"),
        ("f", 1, "it ends where only within"),
        ("f likes g", 2, "`likes` stands where only within, only from, before, takes, raises or gets does"),
        ("never within g", 6, "`within` stands where a function does; a function of that name is written 'within'"),
        ("never f within g too", 17, "`too` follows a rule that is complete"),
        ("at most many f in one g", 8, "`many` is no number"),
        ("at most 3 f in g", 15, "`g` stands where `one` does"),
        ("f takes at most long", 16, "'long' is not a time: give one as 50ms, 2s or 1m30s"),
        ("f takes at most 3s asleep", 19, "`asleep` is none of on-cpu, runq-wait, gil-wait, blocked, wall"),
        ("no wait of tea", 11, "`tea` is none of gil, lock"),
        ("f gets n in ten", 12, "`ten` is no range"),
        ("never 'f", 6, "a quotation mark is not closed"),
        ("no wait while a lock of f", 25, "it ends where `is` does"),
        ("f before g in the same room", 23, "`room` is none of thread, task, process"),
    ],
)
def test_a_wrong_word_is_said_with_its_place(text: str, column: int, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_text(f'# rules\n[rules]\n  first = "{text}"', "r.toml") if '"' not in text else None
    assert str(error.value).startswith(f"r.toml:3:{12 + column}: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rules]\na = \n", "r.toml:2:5: Invalid value."),
        ("[rules]\na = 'never f'\na = 'never g'", "r.toml:3:14: Cannot overwrite a value."),
        ("[rules", "r.toml:1:7: Expected ']' at the end of a table declaration."),
        ("[rulez]\na = 1", "r.toml:1:2: `rulez` is none of names, rules."),
        ("rules = 3", "r.toml:1:1: `rules` is a table: write [rules]."),
        ("[names]\nq = 3\n", "r.toml:2:1: `q` is a pattern, or a list of some."),
        ("[rules]\n'a b' = 3\n", "r.toml:2:1: `a b` is a rule in quotation marks."),
        ("", 'r.toml:1:1: it has no rule; write one as NAME = "RULE" below [rules].'),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_text(text, "r.toml")
    assert str(error.value) == said


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml cannot be read .* or one of .*asyncio"):
        read(str(tmp_path / "none.toml"))
    (tmp_path / "r.toml").write_bytes(b"[rules]\na = '\xff'")
    with pytest.raises(UsageError, match=r"r\.toml:2:6: it is not UTF-8"):
        read(str(tmp_path / "r.toml"))


def test_each_file_that_comes_with_it_is_read() -> None:
    assert "asyncio" in shipped()
    for name in shipped():
        assert all(rule.where[0] == f"{name}.toml" and rule.where[1] > 0 for rule in read(name))
