"""`run --rootless` from end to end, as an ordinary user and as this one, with perf's switches and with sampled CPU time."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST
from tests.bpf.conftest import traced_by, wait_until
from tests.conftest import PATIENCE_S, REPOSITORY, TARGETS
from tests.unit.agent_pythons import built

NOBODY = 65534
NO_PERF = [sys.executable, str(REPOSITORY / "tests" / "no_perf.py")]
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else os.path.realpath(sys.executable)
NEVER_BY_CPUTIME = ["gil_wait_ns", "blocked_ns", "waits", "preemptions", "migrations", "first_cpu"]
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")

COMPUTE = """
import threading, time
def compute():
    began = time.thread_time()
    while time.thread_time() - began < 0.15: pass
def sleep(): time.sleep(0.3)
threads = [threading.Thread(target=compute) for _ in range(3)] + [threading.Thread(target=sleep)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

pytestmark = [built, pytest.mark.measured]


class Run:
    """One run: what it said, and its trace."""

    def __init__(self, folder: Path, before: list[str], command: list[str], options: tuple[str, ...] = ()) -> None:
        self.directory = folder / "trace"
        self._before = before
        words = [sys.executable, "-m", "pytrace_ebpf", "run", "--rootless", *options, "-o", str(self.directory), "--"]
        self.process = subprocess.Popen(
            [*before, *words, *command],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out = self.err = ""

    def end(self) -> "Run":
        self.out, self.err = self.process.communicate(timeout=PATIENCE_S)
        return self

    @property
    def trace(self) -> Trace:
        return pytrace_ebpf.open(self.directory)

    @property
    def done(self) -> dict[str, Any]:
        """What a program of tests/targets said at its end."""
        return dict(json.loads(next(line[5:] for line in self.out.splitlines() if line.startswith("done "))))

    def calls(self) -> pd.DataFrame:
        return self.trace.calls().merge(self.trace.functions(), on="func_id")

    def says(self, command: str) -> str:
        """What another command of the same user says about the trace, its line breaks as blanks."""
        words = [sys.executable, "-m", "pytrace_ebpf", command, str(self.directory)]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        ended = subprocess.run([*self._before, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 0, ended.stderr
        return " ".join(ended.stdout.split())


@pytest.fixture
def user() -> list[str]:
    """Words that run a command as an ordinary user; none where that is what we are."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    tried = subprocess.run([*words, sys.executable, "-c", "import pytrace_ebpf"], env=environment, capture_output=True)
    return [] if tried.returncode else words  # where an ordinary user may not read this checkout


@pytest.fixture(params=["perf", "cputime"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rootless(user: list[str], source: str) -> Iterator[Callable[..., Run]]:
    """`rootless(*command, options=())` runs a command to its end; `wait=False` only starts it."""
    folder = Path(tempfile.mkdtemp(prefix="rootless-"))  # pytest's own folders are closed to others
    folder.chmod(0o777)
    before = [*user, *(NO_PERF if source == "cputime" else [])]
    started: list[Run] = []

    def run(*command: str, options: tuple[str, ...] = (), wait: bool = True) -> Run:
        started.append(Run(folder, before, list(command), options))
        return ended(started[-1], source) if wait else started[-1]

    yield run
    for each in started:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.communicate()
    shutil.rmtree(folder)


def ended(run: Run, source: str) -> Run:
    """The run at its end."""
    run.end()
    if run.directory.exists() and run.trace.scheduling["source"] != source:
        pytest.skip(f"perf is refused here: {run.trace.scheduling['why']}")
    return run


def target(name: str) -> list[str]:
    return [PYTHON, str(TARGETS / f"{name}.py")]


def left_behind(beside: set[str]) -> set[str]:
    """The agent's directories that stay, of those that were not there before; recordings beside this one have theirs for a while."""
    end, stay = time.monotonic() + PATIENCE_S, directories() - beside
    while stay and time.monotonic() < end:
        time.sleep(0.1)
        stay &= directories()
    return stay


def directories() -> set[str]:
    return {str(path) for place in PLACES for path in Path(place).glob("pytrace-ebpf-*") if path.stat().st_uid == NOBODY}


def test_every_call_of_every_thread(rootless: Callable[..., Run]) -> None:
    before = directories()
    run = rootless(*target("threads"))
    assert run.process.returncode == 0, run.err
    counts = run.calls()["name"].value_counts()
    assert {name: counts[name] for name in run.done["calls"]} == run.done["calls"]
    assert run.trace.manifest["lost"] == {}
    assert run.trace.manifest["target"]["command"].endswith("threads.py")
    assert not left_behind(before)


def test_every_call_of_every_child(rootless: Callable[..., Run], source: str) -> None:
    run = rootless(*target("forks"), "--wait", wait=False)
    assert run.process.stdin is not None and run.process.stdout is not None
    run.process.stdin.write("\n")
    run.process.stdin.flush()
    assert [run.process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    wait_until((run.directory / MANIFEST).exists)
    wait_until(lambda: len(traced_by(run.directory, "agent")) == 6)  # they live until each was found, and so sampled
    run.process.stdin.write("\n")
    run.process.stdin.flush()
    assert ended(run, source).process.returncode == 0, run.err
    calls = run.calls()
    steps = calls[calls["name"] == "step"].groupby("pid").size().to_dict()
    assert steps == {int(pid): count for pid, count in run.done["steps"].items()}
    processes = run.trace.processes().set_index("pid")
    assert (processes.loc[list(steps), "source"] == "agent").all()
    assert run.done["executed"] in set(calls.loc[calls["on_cpu_ns"].notna(), "pid"])


def test_what_was_called_before_an_exec_is_kept(rootless: Callable[..., Run]) -> None:
    second = "def g(): pass\nfor _ in range(700): g()"
    run = rootless(PYTHON, "-c", f"import os\ndef f(): pass\nfor _ in range(1000): f()\nos.execv({PYTHON!r}, [{PYTHON!r}, '-c', {second!r}])")
    assert run.process.returncode == 0, run.err
    counts = run.calls()["name"].value_counts()
    assert (counts.get("f"), counts.get("g")) == (1000, 700)
    assert run.trace.manifest["lost"] == {}


@pytest.mark.usefixtures("none_ignored")
def test_a_terminal_that_closes_ends_it_like_the_program(rootless: Callable[..., Run]) -> None:
    run = rootless(PYTHON, "-c", "import time\ndef f(): print('ready', flush=True); time.sleep(600)\nf()", wait=False)
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "ready\n"
    os.killpg(run.process.pid, signal.SIGHUP)
    ended = run.end()
    assert ended.process.returncode == 128 + signal.SIGHUP, ended.err
    assert "Traceback" not in ended.err
    assert ended.trace.manifest["state"] == "complete"


def test_time_on_a_core_is_the_kernels_and_what_is_not_known_is_null(rootless: Callable[..., Run], source: str) -> None:
    run = rootless(PYTHON, "-c", COMPUTE)
    assert run.process.returncode == 0, run.err
    calls = run.calls()
    compute, sleep = (calls[calls["name"] == name] for name in ("compute", "sleep"))
    assert len(compute) == 3
    assert compute["on_cpu_ns"].sub(0.15e9).abs().max() <= 0.03e9
    assert (sleep["on_cpu_ns"] < 0.05e9).all()
    if source == "perf":
        assert sleep[["runq_wait_ns", "gil_wait_ns", "blocked_ns"]].isna().all(axis=None)
        assert calls.loc[calls["status"] == "complete", "waits"].notna().all()
    else:
        assert calls[NEVER_BY_CPUTIME].isna().all(axis=None)
        assert calls["runq_wait_ns"].dropna().ge(0).all()
    why = run.trace.scheduling["why"]
    for command in ("report", "info"):
        assert f"Run queue, GIL wait and blocked are not distinguished: {why}." in run.says(command)


@pytest.mark.parametrize("source", ["perf"], indirect=True)
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("def f(): raise SystemExit(7)", 7),
        ("import os\ndef f(): os.kill(os.getpid(), 11)", 139),
        ("import ctypes\ndef f(): ctypes.string_at(0)", 139),
        ("import os\ndef f(): os._exit(5)", 5),
    ],
)
def test_every_end_of_the_program(rootless: Callable[..., Run], program: str, code: int) -> None:
    run = rootless(PYTHON, "-c", f"{program}\nf()")
    assert run.process.returncode == code, run.err
    assert run.trace.manifest["state"] == "complete"
    call = run.calls().set_index("name").loc["f"]
    assert call["status"] == ("unwound" if code == 7 else "open_at_end")


@pytest.mark.usefixtures("none_ignored")
def test_ctrl_c_is_the_programs(rootless: Callable[..., Run]) -> None:
    run = rootless(PYTHON, "-c", "import time\ndef f(): print('ready', flush=True); time.sleep(600)\nf()", wait=False)
    assert run.process.stdout is not None
    assert run.process.stdout.readline() == "ready\n"
    os.killpg(run.process.pid, signal.SIGINT)
    run.end()
    assert run.process.returncode == 130, run.err
    assert run.calls().set_index("name").loc["f", "status"] == "unwound"


@pytest.mark.parametrize("source", ["perf"], indirect=True)
@pytest.mark.parametrize("command", [["/bin/true"], ["/usr/bin/env", "-i", PYTHON, "-c", "pass"], [PYTHON, "--version"]])
def test_a_program_without_calls_is_explained(rootless: Callable[..., Run], command: list[str]) -> None:
    run = rootless(*command)
    assert run.process.returncode == 0, run.err
    (said,) = run.trace.manifest["sources"]
    assert said["source"] is None
    assert said["why"] in run.err
    assert f"No calls of process {said['pid']}: {said['why']}." in run.says("report")
    assert said["why"] in run.says("info")


def test_the_time_that_the_program_waited_for_the_tracer_is_reported(rootless: Callable[..., Run]) -> None:
    run = rootless(*target("fib"), "22", options=("--ring-mib", "0.25"))
    assert run.process.returncode == 0, run.err
    assert run.calls()["name"].value_counts()["fib"] == run.done["calls"]["fib"]
    assert run.trace.manifest["cost"]["waited_ns"] > 0
    for said in (run.err, run.says("report"), run.says("info")):
        assert "the program waited" in said.lower()
