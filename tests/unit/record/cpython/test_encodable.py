"""Names at which the interpreter's own probe code would raise are found from outside, and forged memory ends the search."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytrace_ebpf.record.cpython.encodable import script, unencodable, unencodable_path
from pytrace_ebpf.record.process.target import inspect
from tests.unit.live_pythons import interpreters, minor_of, running

PYTHONS = interpreters()
RAISING = [name for name in PYTHONS if minor_of(name) <= 11]
HARMLESS = [name for name in PYTHONS if minor_of(name) >= 12]
STILL = "print('ready', flush=True); input()"
# What holds the name, and the name as it is shown.
PROGRAMS = {
    "a file": (f"exec(compile('def f(): pass', 'x-\\udcff.py', 'exec')); {STILL}", r"'x-\udcff.py'"),
    "a name": (f"def f(): pass\nf.__code__ = f.__code__.replace(co_name='g\\ud800')\n{STILL}", r"'g\ud800'"),
    "a nested function, which is not on its own": (
        "def f():\n def g(): pass\nis_code = lambda it: hasattr(it, 'co_name')\nconstants = f.__code__.co_consts\n"
        "f.__code__ = f.__code__.replace(co_consts=tuple(c.replace(co_name='g\\x1b\\U0001f40d\\udc80') if is_code(c) else c for c in constants))\n"
        + STILL,
        r"'g\x1b\U0001f40d\udc80'",
    ),
    "nothing, but wide names": (f"exec(compile('def f\\u4e2d(): pass', 'x-\\U0001f40d.py', 'exec')); s = '\\udcff'; {STILL}", ""),
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("name", RAISING)
def test_what_cannot_be_encoded_is_found(name: str, kind: str) -> None:
    source, shown = PROGRAMS[kind]
    with running(PYTHONS[name], source) as pid:
        assert unencodable(inspect(pid)) == shown


@pytest.mark.parametrize("name", RAISING)
def test_an_open_frame_of_another_thread_is_found(name: str) -> None:
    source = (
        "import threading, time\ndef f():\n print('ready', flush=True)\n time.sleep(60)\n"
        "f.__code__ = f.__code__.replace(co_filename='x\\udcff')\nthreading.Thread(target=f, daemon=True).start()\ninput()"
    )
    with running(PYTHONS[name], source) as pid:
        assert unencodable(inspect(pid)) == r"'x\udcff'"


@pytest.mark.parametrize("name", HARMLESS)
def test_where_the_probes_do_not_raise_nothing_is_searched(name: str) -> None:
    with running(PYTHONS[name], PROGRAMS["a file"][0]) as pid:
        assert unencodable(inspect(pid)) == ""


@pytest.mark.parametrize("name", RAISING[:1])
def test_forged_code_objects_end_the_search_and_nothing_else(name: str) -> None:
    forged = (
        "import array, types\nstring = '\\udcff' * 10\n"
        "one = [1, id(types.CodeType)] + [{word}] * 14\nmemory = array.array('Q', one * 500_000)\n" + STILL
    )
    for word in ("1", "2**63", "2**47 - 8", "id(string) + 8", "id(types)"):
        with running(PYTHONS[name], forged.format(word=word)) as pid:
            assert unencodable(inspect(pid)) == ""
    with running(PYTHONS[name], forged.format(word="id(string)")) as pid:  # it deceives only itself
        assert r"\udcff" in unencodable(inspect(pid))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (b"a.py -c b", b"a.py"),
        (b"-u -W error a.py", b"a.py"),
        (b"-Werror a.py", b"a.py"),
        (b"-uX dev a.py", b"a.py"),
        (b"-Xdev --check-hash-based-pycs always a.py", b"a.py"),
        (b"-c pass a.py", None),
        (b"-Im module", None),
        (b"-", None),
        (b"-W", None),
        (b"", None),
    ],
)
def test_the_script_of_a_command_line(words: bytes, found: bytes | None) -> None:
    assert script(words.split()) == found


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder whose name is not UTF-8, with a program that stands still; there is one beside it, too."""
    folder = tmp_path / "x-\udcff"
    folder.mkdir()
    (folder / "still.py").write_text(STILL)
    (tmp_path / "still.py").write_text(STILL)
    return folder


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the probes of this Python raise nowhere")
@pytest.mark.parametrize("kind", ["script", "relative", "module", "path", "nothing", "argument"])
def test_where_code_will_come_from(kind: str, odd: Path) -> None:
    words = {
        "script": [str(odd / "still.py")],
        "relative": ["still.py"],
        "module": ["-m", "still"],
        "argument": [str(odd.parent / "still.py"), str(odd)],
    }.get(kind, [str(odd.parent / "still.py")])
    environment = {**os.environ, "PYTHONPATH": f"/tmp:{odd}"} if kind == "path" else {**os.environ}
    process = subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        cwd=odd if kind in ("relative", "module") else None,
    )  # fmt: skip
    try:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        found = unencodable_path(inspect(process.pid))
        assert (r"x-\udcff" in found) == (kind not in ("nothing", "argument"))
    finally:
        process.communicate(b"\n")
