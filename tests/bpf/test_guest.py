"""A guest is not seen, and cannot be hurt by what else its host has at the table."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.schema import AGENT
from tests.bpf.conftest import COMMAND, Recorder
from tests.conftest import HOST_PYTHON, PATIENCE_S, Python, Target, built_pythons

Run = Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]]
WARNS = [python for python in built_pythons() if python.minor >= 12]  # of a fork beside threads
PYTHONS = [Python(HOST_PYTHON), *built_pythons()]
OLD = [python for python in PYTHONS if python.minor < 11 or python is PYTHONS[0]]  # with a profile function in each thread
FORKS = os.environ.get("PYTRACE_FORKS", "8")  # in each of the four ways of tests/targets/forking.py; 250 make a thousand


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_another_tools_function_that_is_gone_is_never_called(interpreter: Python, run: Run) -> None:
    _, ended = run(interpreter.command("neighbours", "left"), "-q", "--source", "agent")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'done {"calls": {}}\n', "")


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_a_code_object_at_the_address_of_one_that_died_has_its_own_name(interpreter: Python, run: Run) -> None:
    directory, ended = run(interpreter.command("neighbours", "reused"), "-q", "--source", "agent")
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout.removeprefix("done "))["calls"]
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert calls[calls["name"].str.startswith("made_")].groupby("name").size().to_dict() == counts


@pytest.fixture
def busy() -> Iterator[None]:
    """Two other processes that compute."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.parametrize("way", ["run", "attach"])
@pytest.mark.parametrize("options", [[], ["-W", "error"]], ids=["", "strict"])
@pytest.mark.parametrize("interpreter", [Python(HOST_PYTHON), *WARNS], ids=str)
def test_a_program_that_forks_says_what_it_says_untraced(
    interpreter: Python, options: list[str], way: str, busy: None, run: Run, attach: Callable[..., Recorder]
) -> None:
    first, *rest = interpreter.command("forking", FORKS)
    command = [first, *options, *rest]
    if way == "run":
        _, traced = run(command, "-q", "--source", "agent")
        ended = traced.returncode, traced.stdout, traced.stderr
    else:
        pipe = subprocess.PIPE
        with subprocess.Popen([*command, "--wait"], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            ready = process.stdout.readline()
            recorder = attach(process.pid, "--source", "agent")
            stdout, stderr = process.communicate("\n", PATIENCE_S)
            recorder.finish()
        ended = process.returncode, ready + stdout, stderr
    assert ended == (0, 'ready\ndone {"failed": 0}\n', "")


@pytest.mark.parametrize("interpreter", [Python(HOST_PYTHON), *WARNS], ids=str)
@pytest.mark.parametrize("threads", [[], ["threads"]], ids=["", "threads"])
def test_a_program_that_forks_all_the_time_goes_on_while_agents_come_and_go(
    interpreter: Python, threads: list[str], target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("forking", "1000000", *threads, python=interpreter)
    for _ in range(4):
        recorder = attach(process.pid, "--source", "agent", "--no-follow")
        recorder.stop()
        assert process.process.poll() is None  # it ends where something fails


@pytest.mark.parametrize(
    "interpreter, options",
    [*((python, ("--lines", "exact")) for python in OLD if python.minor != 10), *((python, ()) for python in OLD)],
    ids=lambda value: str(value) if isinstance(value, Python) else " ".join(value),
)
def test_a_programs_audit_hooks_do_not_have_the_agent_write_to_threads_that_ended(
    interpreter: Python, options: tuple[str, ...], target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("audited", python=interpreter)
    for _ in range(2):
        trace = pytrace_ebpf.open(attach(process.pid, "--source", "agent", "--duration", "1", *options).finish())
        assert process.process.poll() is None
        calls = trace.calls(columns=["func_id"]).merge(trace.functions()[["func_id", "name"]], on="func_id")
        assert (calls["name"] == "work").any()
    process.go()
    assert process.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_the_collector_reads_nothing_that_is_gone_while_a_generator_runs(
    interpreter: Python, target: Callable[..., Target], attach: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as freed_is_overwritten:
        freed_is_overwritten.setenv("PYTHONMALLOC", "debug")
        process = target("garbage_in_generators", "--wait", python=interpreter)
    recorder = attach(process.pid, "--source", "agent")
    process.go()
    assert process.done() == {"within": "generator"}  # and recorded since it was entered
    process.go()
    assert process.done() == {"within": "generator"}
    recorder.stop()
    process.go()  # it was entered while that was recorded
    assert process.done() == {"items": [4, 2], "awaited": [4, 2]}
    assert process.wait() == 0


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_the_collector_reads_nothing_that_is_gone_while_a_coroutine_runs(interpreter: Python, run: Run) -> None:
    command = interpreter.command("garbage_in_generators")
    _, ended = run(["env", "PYTHONMALLOC=debug", *command], "-q", "--source", "agent")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, 'done {"items": [4, 2], "awaited": [4, 2]}')


@pytest.mark.parametrize("interpreter", [Python(HOST_PYTHON), *WARNS], ids=str)
def test_an_idle_program_is_left_at_once_by_an_agent_that_has_no_thread(
    interpreter: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("sleeper", "--wait", python=interpreter)
    recorder = attach(process.pid, "--source", "agent")
    assert "pytrace-agent" not in [name.read_text().strip() for name in Path(f"/proc/{process.pid}/task").glob("*/comm")]
    trace = pytrace_ebpf.open(recorder.stop())
    assert trace.manifest["state"] == "complete"
    assert ".arena" not in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.parametrize("options", [(), ("--opcodes", "exact")], ids=["", "opcodes"])
@pytest.mark.parametrize("ids", ["4", "3 4", "0 1 2 3 5", "5 4 3 2 1", "all"])
@pytest.mark.parametrize("interpreter", WARNS, ids=str)
def test_a_program_gets_every_id_of_a_tool_that_it_asks_for(interpreter: Python, ids: str, options: tuple[str, ...], run: Run) -> None:
    command = interpreter.command("tool_ids", *ids.split())
    plain = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert json.loads(plain.stdout.partition("done ")[2])["errors"] == []
    directory, traced = run(command, "-q", "--source", "agent", *options)
    assert (traced.returncode, traced.stdout, traced.stderr) == (0, plain.stdout, "")
    trace = pytrace_ebpf.open(directory)
    counts = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id").groupby("name").size()
    assert counts["before"] == 100
    if ids == "all":
        assert "every tool id" in trace.manifest["sources"][-1]["why"]
    else:
        assert counts["after"] == 100 and counts["step"] == 200 + 10 * len(ids.split())


@pytest.fixture
def other_root(tmp_path: Path) -> tuple[Path, str]:
    """A root with a shell, and a library that is in it at the place where it is here."""
    root = tmp_path / "root"
    files = [Path("/bin/sh"), Path("/bin/true")]
    listed = subprocess.check_output(["ldd", *files], text=True)
    libraries = [Path(word) for word in listed.split() if word.startswith("/") and not word.endswith(":")]
    for file in [*files, *libraries]:
        place = root / file.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    return root, next(str(file) for file in libraries if "libc.so" in file.name)


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_programs_executed_in_another_root_say_what_they_say_untraced(interpreter: Python, other_root: tuple[Path, str], run: Run) -> None:
    root, library = other_root
    command = interpreter.command("other_root", str(root), library)
    plain = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (json.loads(plain.stdout.partition("done ")[2])["failed"], plain.stderr) == (0, "")
    assert plain.stdout.splitlines().count(library) == 5
    directory, traced = run(command, "-q", "--source", "agent")
    assert (traced.returncode, traced.stdout, traced.stderr) == (0, plain.stdout, "")
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert (calls["name"] == "step").sum() >= 1


@pytest.mark.parametrize("interpreter", PYTHONS, ids=str)
def test_programs_executed_after_the_tracer_was_killed_say_nothing_of_it(interpreter: Python, tmp_path: Path) -> None:
    options = ["-q", "--source", "agent", "-o", str(tmp_path / "trace")]
    command = [*COMMAND, "run", *options, "--", *interpreter.command("outlives", str(tmp_path / "go"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None and tracer.stdout.readline() == "ready\n"
        tracer.kill()
        tracer.wait()
        (tmp_path / "go").touch()
        stdout, stderr = tracer.communicate(timeout=PATIENCE_S)  # until the program has ended
    assert (stdout, stderr) == ('done {"failed": 0}\n', "")


@pytest.mark.parametrize("interpreter", [python for python in built_pythons() if python.minor >= 13], ids=str)
def test_events_of_what_is_no_code_are_nothing_to_the_agent(interpreter: Python, run: Run) -> None:
    directory, ended = run(interpreter.command("code_like"), "-q", "--source", "agent")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'ready\ndone {"calls": {"step": 80}}\n', "")
    trace = pytrace_ebpf.open(directory)
    calls = trace.calls(columns=["func_id"]).merge(trace.functions(), on="func_id")
    assert (calls["name"] == "step").sum() == 80


@pytest.mark.parametrize("interpreter", [Python(HOST_PYTHON), *WARNS], ids=str)
def test_the_thread_of_the_agent_is_none_of_the_program_s(
    interpreter: Python, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("sleeper", "--wait", python=interpreter)
    trace = pytrace_ebpf.open(attach(process.pid, "--source", "agent").stop())
    names = trace.threads().set_index("tid")["name"].to_dict()
    assert len(names) >= 2  # one as it joined, where Python did not run
    assert set(names.values()) - {names[process.pid]} == {AGENT}
    shown = json.loads(subprocess.check_output([*COMMAND, "report", "--by", "thread", "--json", str(trace.directory)], text=True, timeout=PATIENCE_S))
    assert AGENT not in json.dumps(shown)
