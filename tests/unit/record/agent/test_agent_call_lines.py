"""The line that a call was made from, where its caller is not recorded, or only for a time, or its code is gone."""

from pathlib import Path

from tests.agent_arena import OPEN, Session
from tests.unit.agent_pythons import Attached, attached, built, every_python, run

pytestmark = built


@every_python
def test_a_caller_that_is_excluded_leaves_no_line(interpreter: str, tmp_path: Path) -> None:
    session = Session(tmp_path / "session", exclude="<between>")
    program = """names = {}
exec(compile("def between(f): return f()", "<between>", "exec"), names)
def inner(): pass
def outer():
    inner()
    names["between"](inner)
outer()
"""
    run(session, interpreter, "-c", program)
    sites = session.arenas()[0].sites()
    inner, outer = "<string>:inner:3", "<string>:outer:4"
    assert {site: count for site, count in sites.items() if site.endswith(inner)} == {f"{outer}:5 > {inner}": 1, f"{outer}:0 > {inner}": 1}


@every_python
def test_a_caller_that_is_left_out_for_a_time_has_no_lines_then(interpreter: str, tmp_path: Path) -> None:
    program = """
def inner(): pass
def between():
    inner()
def outer():
    between()
    inner()
serve()
"""
    session = Session(tmp_path / "session")
    with attached(interpreter, program) as process:
        process.load(session)
        process.ask("outer()")
        session.leave_out("between")
        process.ask("outer()")
        session.leave_out()
        process.ask("outer()")
    sites = {}
    for site, count in session.arenas()[0].sites().items():
        names = [end.split(":") for end in site.split(" > ")]
        if names[0][1] in ("outer", "between"):
            sites[names[0][1], int(names[0][3]) and int(names[0][3]) - int(names[0][2]), names[1][1]] = count
    assert sites == {("outer", 1, "between"): 2, ("between", 1, "inner"): 2, ("outer", 0, "inner"): 1, ("outer", 2, "inner"): 3}


@every_python
def test_the_place_of_freed_code_has_lines_of_its_own(interpreter: str, tmp_path: Path) -> None:
    """Code that comes and goes, most of it at the address of the one before, calls from another line each time."""
    count = 300
    session = Session(tmp_path / "session")
    program = f"""def inner(): pass
addresses = set()
for number in range({count}):
    names = {{"inner": inner}}
    exec(compile("def calls():\\n" + "\\n" * number + "    inner()", "<made>", "exec"), names)
    names["calls"]()
    addresses.add(id(names["calls"].__code__))
assert len(addresses) < {count}
"""
    run(session, interpreter, "-c", program)
    lines = sorted(int(site.split(" > ")[0].split(":")[3]) for site in session.arenas()[0].sites() if site.startswith("<made>:calls"))
    assert lines == [number + 2 for number in range(count)]


@every_python
def test_frames_that_were_open_have_the_lines_of_their_callers(interpreter: str, tmp_path: Path) -> None:
    program = "\ndef first():\n\n    second()\ndef second():\n    serve()\nfirst()\n"
    session = Session(tmp_path / "session")
    with attached(interpreter, program) as process:
        process.load(session)
        process.ask("1")
    (arena,) = session.arenas()
    begins = len(Attached.SERVES.splitlines())
    opened = arena.events[arena.events["kind"] == OPEN]
    lines = [(arena.functions[row["function"]].name, int(row["line"]) and int(row["line"]) - begins) for row in opened]
    assert lines[:4] == [("<module>", 0), ("first", 7), ("second", 4), ("serve", 6)]
