"""Several processes in one recording: children that exist already, several --pid, and processes that match --match."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import COMMAND, Recorder, lost, reported, traced_by, wait_until
from tests.conftest import PATIENCE_S, SOURCES, Target

NOBODY, ANYBODY = 65534, 65533
PYTHON = "/usr/bin/python3.11"
# Says that it is ready, makes so many calls of `step` for each line that it reads, and says so.
STEPS = """
import sys
def step(): pass
def steps():
    for _ in range(10): step()
print("ready", flush=True)
for line in sys.stdin:
    steps()
    print("done", flush=True)
"""


class Stepping:
    """A Python of a user's that makes ten calls when it is asked to; `word`, on its command line, distinguishes it from others."""

    def __init__(self, word: str, user: int = 0) -> None:
        self.process = subprocess.Popen(
            [PYTHON, "-I", "-S", "-c", STEPS, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            user=user, group=user, extra_groups=[], cwd="/",
        )  # fmt: skip
        self._expect("ready")

    @property
    def pid(self) -> int:
        return self.process.pid

    def step(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self._expect("done")

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _expect(self, word: str) -> None:
        assert self.process.stdout and self.process.stdout.readline() == f"{word}\n"


@pytest.fixture
def stepping() -> Iterator[Callable[..., Stepping]]:
    started: list[Stepping] = []

    def start(word: str, user: int = 0) -> Stepping:
        started.append(Stepping(word, user))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def word(tmp_path: Path) -> str:
    """A word that is on no other command line of this machine."""
    return f"stepping-{os.getpid()}-{tmp_path.name}"


class Matching(Recorder):
    """A running `attach` of what its words name."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.directory = directory
        self.process = subprocess.Popen([*COMMAND, "attach", *words, "-o", str(directory)], stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self.says("Ctrl-C stops")

    def says(self, what: str) -> str:
        """Wait until it says so."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line)
            if what in line:
                return line
        raise AssertionError(f"it never said {what!r} but: {''.join(self.said)}")


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Matching]]:
    """`record(*words)` starts `attach WORDS` and returns it, recording."""
    started: list[Matching] = []

    def start(*words: str) -> Matching:
        started.append(Matching(tmp_path / f"trace{len(started)}", *words))
        return started[-1]

    yield start
    for each in started:
        each.close()


def workers_of(master: Target) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{master.pid}/task/{master.pid}/children").read_text().split()}


def calls_of(trace: Trace, name: str) -> dict[int, int]:
    """Calls of a function per process."""
    calls = trace.calls(columns=["pid", "func_id"]).merge(trace.functions(), on="func_id")
    return calls[calls["name"] == name].groupby("pid").size().to_dict()


@pytest.mark.parametrize("source", SOURCES)
def test_the_workers_that_a_master_has_already_are_traced(source: str, target: Callable[..., Target], traced: Callable[..., tuple]) -> None:
    master = target("prefork", "--wait")
    trace, facts = traced(master, "--source", source)
    handled = {int(pid): count for pid, count in facts["handled"].items()}
    assert len(handled) == 3 and calls_of(trace, "handle") == handled
    processes = trace.processes().set_index("pid")
    assert (processes.loc[[*handled], "source"] == source).all() and (processes.loc[[*handled], "ppid"] == master.pid).all()
    assert not lost(trace) and trace.manifest["target"]["pid"] == master.pid
    calls = trace.calls()
    assert reported(trace, calls[calls["pid"].isin(handled)])["on_cpu_ns"].notna().all()
    # The function that was open when recording began has its name: the loop that waits for requests.
    opened = calls[calls["pid"].isin(handled) & (calls["status"] == "open_at_start")].merge(trace.functions(), on="func_id")
    assert set(opened[opened["name"] == "serve"]["pid"]) == set(handled)


def test_a_worker_that_replaces_another_is_traced_too(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    master = target("prefork", "replace", "--wait")
    worker = min(workers_of(master))
    recorder = attach(master.pid, "--source", "usdt")
    os.kill(worker, signal.SIGKILL)
    master.go()
    master.ready()
    wait_until(lambda: workers_of(master) <= traced_by(recorder.directory, "usdt"))
    master.go()
    handled = {int(pid): count for pid, count in master.done()["handled"].items()}
    trace = pytrace_ebpf.open(recorder.finish())
    assert worker not in handled and calls_of(trace, "handle") == handled
    assert trace.processes().set_index("pid").loc[worker, "end_ns"] > 0


def test_a_worker_that_is_named_beside_its_master_is_traced_once(target: Callable[..., Target], record: Callable[..., Matching]) -> None:
    master = target("prefork", "--wait")
    worker = max(workers_of(master))
    recorder = record("--pid", f"{master.pid},{worker}", "--source", "usdt")
    master.go()
    handled = {int(pid): count for pid, count in master.done()["handled"].items()}
    trace = pytrace_ebpf.open(recorder.finish())
    assert calls_of(trace, "handle") == handled and not lost(trace)
    assert [each["pid"] for each in trace.manifest["targets"]] == [master.pid, worker]


def test_without_following_the_workers_are_left_alone(target: Callable[..., Target], traced: Callable[..., tuple]) -> None:
    master = target("prefork", "--wait")
    trace, _ = traced(master, "--no-follow", "--source", "usdt")
    assert calls_of(trace, "handle") == {} and set(trace.processes()["pid"]) == {master.pid}


@pytest.mark.parametrize("source", SOURCES)
def test_processes_of_several_users_in_one_trace(source: str, stepping: Callable[..., Stepping], record: Callable[..., Matching]) -> None:
    those = [stepping("one"), stepping("one", NOBODY), stepping("one", ANYBODY)]
    recorder = record("--pid", f"{those[0].pid},{those[1].pid}", "--pid", str(those[2].pid), "--source", source)
    for count, each in enumerate(those, 1):
        for _ in range(count):
            each.step()
    for each in those:
        each.end()
    trace = pytrace_ebpf.open(recorder.finish())  # ends when all have ended
    assert calls_of(trace, "step") == {each.pid: 10 * count for count, each in enumerate(those, 1)}
    assert [each["pid"] for each in trace.manifest["targets"]] == [each.pid for each in those]
    assert trace.manifest["target"]["pid"] == those[0].pid
    assert not lost(trace)


def test_a_killed_and_an_untraceable_process_cost_the_others_nothing(stepping: Callable[..., Stepping], record: Callable[..., Matching]) -> None:
    first, second = stepping("one"), stepping("one")
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeper:
        try:
            recorder = record("--pid", f"{sleeper.pid},{first.pid},{second.pid}", "--source", "usdt")
            first.step()
            first.kill()
            second.step()
            second.end()
            trace = pytrace_ebpf.open(recorder.finish())
        finally:
            sleeper.kill()
    assert recorder.process.stderr
    said = "".join(recorder.said) + recorder.process.stderr.read()
    assert said.count("which is not a Python") == 1 and f"process {sleeper.pid}" in said
    assert calls_of(trace, "step") == {first.pid: 10, second.pid: 10}
    processes = trace.processes().set_index("pid")
    assert processes.loc[first.pid, "end_ns"] < processes.loc[second.pid, "end_ns"]
    words = [sys.executable, "-m", "pytrace_ebpf", "report", str(recorder.directory)]
    assert f"2 processes of {PYTHON}" in subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_no_traceable_process_is_an_error(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as first, subprocess.Popen(["/bin/sleep", "60"]) as second:
        words = [*COMMAND, "attach", "--pid", f"{first.pid},{second.pid}", "-o", str(tmp_path / "trace")]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        first.kill()
        second.kill()
    assert ended.returncode == 3 and ended.stderr.count("\n") == 1 and "none of 2 processes can be traced" in ended.stderr
    assert not (tmp_path / "trace").exists()


def test_processes_that_match_are_traced_now_and_later(word: str, stepping: Callable[..., Stepping], record: Callable[..., Matching]) -> None:
    there, other = stepping(word, NOBODY), stepping("else")
    recorder = record("--match", f"{word}$", "--source", "usdt")
    assert f"process {there.pid}" in recorder.said[0]
    there.step()
    there.end()  # which does not end the recording
    later = stepping(word, ANYBODY)
    assert str(later.pid) in recorder.says("as well")
    later.step()
    later.step()
    other.step()
    trace = pytrace_ebpf.open(recorder.stop())
    assert calls_of(trace, "step") == {there.pid: 10, later.pid: 20}
    assert set(trace.processes()["pid"]) == {there.pid, later.pid}  # the tracer's own command line fits too


def test_a_pattern_without_a_match_is_an_error(word: str, tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sh", "-c", "read line", word], stdin=subprocess.PIPE) as shell:  # matches, but is not a Python
        words = [*COMMAND, "attach", "--match", word, "-o", str(tmp_path / "trace")]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        shell.kill()
    assert ended.returncode == 3 and ended.stderr.count("\n") == 1 and "no Python process has a command line that fits" in ended.stderr
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("words", [[], ["--pid", "1,x"], ["--match", "("]])
def test_usage_errors(words: list[str]) -> None:
    ended = subprocess.run([*COMMAND, "attach", *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
