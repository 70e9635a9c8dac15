"""Qualified names from source files against those that the interpreter itself gives (3.11's code objects)."""

import asyncio
import inspect
import os
import subprocess
import sys
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytrace_ebpf.record.cpython.qualnames import for_process, qualname
from pytrace_ebpf.record.process.pinned import Descriptor, Pinned
from pytrace_ebpf.record.process.program_start import began_ns

SOURCE = textwrap.dedent(
    """
    import functools

    def deco(*args):
        def wrap(function):
            return function
        return wrap

    @deco(lambda: 1)
    @deco(
        2
    )
    def decorated(default=lambda: 2, *, key: (lambda: 3) = (lambda: 4)) -> (lambda: 5):
        class Local(functools.partial, metaclass=type):
            attribute = [each for each in (lambda: range(3))()]
            def method(self):
                return lambda: sum(
                    x for x in range(3)
                )
        return Local

    class Outer:
        class Inner:
            async def coroutine(self):
                return {a: (lambda: a) for a in range(3)}
            def __private(self):
                global made_global
                def made_global():
                    def below(): pass
                class made_global_not: pass

    async def generator():
        yield [await x async for x in y]
    """
)

LIBRARY = str(Path(os.__file__).parent)


def opened(file: str) -> Descriptor | None:
    return Descriptor(os.open(file, os.O_RDONLY)) if Path(file).is_file() else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "source.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later inline comprehensions")
def test_every_kind_of_scope(tmp_path: Path) -> None:
    file = _file(tmp_path, SOURCE)
    codes = list(_codes(compile(SOURCE, file, "exec")))
    assert len(codes) == 26
    for code in codes:
        at = [c.co_qualname for c in codes if (c.co_firstlineno, c.co_name) == (code.co_firstlineno, code.co_name)]
        if len(set(at)) == 1:
            assert qualname(opened, file, code.co_firstlineno, code.co_name) == code.co_qualname
    assert qualname(opened, file, 9, "decorated") == "decorated"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="3.12 and later inline comprehensions")
@pytest.mark.parametrize("module", [inspect, asyncio.base_events, textwrap, types, pytest])
def test_the_standard_library(module: types.ModuleType) -> None:
    file = module.__file__
    assert file
    codes = list(_codes(compile(Path(file).read_bytes(), file, "exec")))
    keys = Counter((code.co_firstlineno, code.co_name) for code in codes)
    for code in codes:
        if keys[code.co_firstlineno, code.co_name] == 1:
            assert qualname(opened, file, code.co_firstlineno, code.co_name) == code.co_qualname


def test_what_is_ambiguous_gets_the_shared_form(tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        "def f():\n    return (lambda: 1), (lambda: 2)\ng = lambda: lambda: 1\nclass A: a = lambda: 1; b = lambda: 2\n",
    )
    assert qualname(opened, file, 2, "<lambda>") == "f.<locals>.<lambda>"
    assert qualname(opened, file, 3, "<lambda>") == "<lambda>"
    assert qualname(opened, file, 4, "<lambda>") == "A.<lambda>"


@pytest.mark.parametrize("text", ["def f(:\n", "\0", "x = '\\ud800'\ndef f(): pass\n" + "(" * 500, "a" + ".b" * 100_000])
def test_a_file_that_does_not_parse_gives_none(tmp_path: Path, text: str) -> None:
    assert qualname(opened, _file(tmp_path, text), 1, "f") is None


def test_what_is_not_there_gives_none(tmp_path: Path) -> None:
    file = _file(tmp_path, "def f(): pass\n")
    assert qualname(opened, file, 1, "f") == "f"
    assert qualname(opened, file, 2, "f") is None
    assert qualname(opened, file, 1, "g") is None
    assert qualname(opened, str(tmp_path / "other.py"), 1, "f") is None
    assert qualname(opened, str(tmp_path), 1, "f") is None
    assert qualname(opened, "<string>", 1, "f") is None
    assert qualname(opened, "<string>", 1, "<module>") == "<module>"


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    assert qualname(opened, _file(tmp_path, "def f(): pass\n"), 1, "f") == "f"
    file = _file(tmp_path, "class A:\n    def f(self): pass\n")
    assert qualname(opened, file, 2, "f") == "A.f"


@contextmanager
def begun(folder: Path) -> Iterator[Pinned]:
    """A process that began just now, in `folder`."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=folder) as process:
        yield Pinned(process.pid)
        process.communicate(b"\n")


def change_later(path: Path, change: Callable[[], object], process: Pinned) -> None:
    """Change something until its time says that it was after the process began: a start is known to a clock tick."""
    while path.lstat().st_ctime_ns <= (began_ns(process) or 0):
        change()


def test_a_process_finds_absolute_and_relative_files(tmp_path: Path) -> None:
    file = _file(tmp_path, "class A:\n    def f(self): pass\n")
    with begun(tmp_path) as process:
        find = for_process(process, LIBRARY)
        assert find(file, 2, "f") == find("source.py", 2, "f") == "A.f"


def test_a_file_that_changed_since_the_process_began_is_not_believed(tmp_path: Path) -> None:
    file = Path(_file(tmp_path, "class A:\n    def f(self): pass\n"))
    with begun(tmp_path) as process:
        change_later(file, lambda: file.write_text("class B:\n    def f(self): pass\n"), process)
        find = for_process(process, LIBRARY)
        assert find(str(file), 2, "f") is None and find("source.py", 2, "f") is None
        os.utime(file, (0, 0))  # a deploy may set any time of the content
        assert find(str(file), 2, "f") is None
        assert find("source.py", 1, "<module>") == "<module>"


def test_neither_is_one_that_was_moved_there_or_that_another_link_leads_to(tmp_path: Path) -> None:
    for name, text in (
        ("one", "class A:\n    def f(self): pass\n"),
        ("two", "class B:\n    def f(self): pass\n"),
        ("three", "class C:\n    def f(self): pass\n"),
    ):
        (tmp_path / name).mkdir()
        _file(tmp_path / name, text)
    link = tmp_path / "current"
    link.symlink_to("one")

    def deploy() -> None:
        (tmp_path / "new").unlink(missing_ok=True)
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(link)

    with begun(tmp_path) as process:
        assert for_process(process, LIBRARY)("current/source.py", 2, "f") == "A.f"
        change_later(link, deploy, process)
        find = for_process(process, LIBRARY)
        assert find("current/source.py", 2, "f") is None and find(f"{link}/source.py", 2, "f") is None
        assert find("two/source.py", 2, "f") == "B.f"
        there = tmp_path / "three"

        def move() -> None:
            there.rename(tmp_path / "between")
            (tmp_path / "between").rename(there)

        change_later(there, move, process)
        assert find("three/source.py", 2, "f") is None


def test_a_forked_process_runs_what_its_creator_began(tmp_path: Path) -> None:
    file = Path(_file(tmp_path, "class A:\n    def f(self): pass\n"))
    program = "import os, sys\ninput()\nif os.fork():\n    os.wait()\nelse:\n    print(os.getpid(), flush=True)\n    input()\n"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as creator:
        assert creator.stdin and creator.stdout
        change_later(file, lambda: file.write_text("class B:\n    def f(self): pass\n"), Pinned(creator.pid))
        creator.stdin.write(b"\n")
        child = Pinned(int(creator.stdout.readline()))
        assert began_ns(child) is not None
        assert for_process(child, LIBRARY)(str(file), 2, "f") is None
        creator.stdin.write(b"\n")


def test_of_a_forked_process_whose_creator_is_gone_it_is_not_known_when_its_program_began() -> None:
    program = "import os\nif os.fork():\n    os._exit(0)\nprint(os.getpid(), flush=True)\ninput()\n"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as creator:
        assert creator.stdin and creator.stdout
        creator.wait()
        orphan = Pinned(int(creator.stdout.readline()))
        assert began_ns(orphan) is None
        assert for_process(orphan, LIBRARY)(os.__file__, os._Environ.copy.__code__.co_firstlineno, "copy") is None
        creator.stdin.write(b"\n")


def test_a_frozen_module_is_found_in_the_standard_library() -> None:
    find = for_process(Pinned(os.getpid()), LIBRARY)
    line = os._Environ.copy.__code__.co_firstlineno
    assert find("<frozen os>", line, "copy") == "_Environ.copy"
    line = asyncio.Queue.get.__code__.co_firstlineno
    assert find("<frozen asyncio.queues>", line, "get") == "Queue.get"
    assert find("<frozen nothing>", 1, "get") is None
