"""Programs in containers: namespaces of their own, another root, little room; traced from the host by their host pid."""

import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, Recorder, has_agent, lost, reported, traced_by, wait_until
from tests.bpf.test_counts import counted, ours
from tests.conftest import HOST_PYTHON, MATRIX, PATIENCE_S, REPOSITORY, ROOTS, TARGETS, Python, Target

PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
SPLIT = ["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]
DOCKER = ("--tmpfs", "/tmp:size=1g", "--tmpfs", "/dev/shm:noexec,size=64m")


@dataclass(frozen=True)
class Contained(Python):
    """A Python in a pid and mount namespace of its own."""

    options: tuple[str, ...] = ()  # of scripts/in-root.sh

    def command(self, program: str, *args: str) -> list[str]:
        """Words that run tests/targets/PROGRAM.py; the Python is a child of the process started, and process 1 in there."""
        words = [str(REPOSITORY / "scripts" / "in-root.sh"), "--pid-namespace", *self.options, "--at", str(TARGETS)]
        return [
            *words,
            str(self.root or "/"),
            f"/usr/bin/python{self.version}",
            str(TARGETS / f"{program}.py"),
            *args,
        ]


class Container(Target):
    """A target in a container."""

    @property
    def pid(self) -> int:
        """Its process id on the host."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def left_behind(self) -> list[str]:
        """What a tracer put into it."""
        return [str(path) for place in PLACES for path in Path(f"/proc/{self.pid}/root{place}").glob("pytrace-ebpf-*")]


def contained(python: Python, *options: str) -> Contained:
    """That Python in a container."""
    # so that every user can reach them, wherever they are
    options = ("--tmpfs", f"/{TARGETS.parts[1]}:mode=755", *(options or DOCKER))
    return Contained(python.version, python.root, options=options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`inside, source`: the host's own Python in a container, and with --matrix those of the root filesystems."""
    if "inside" in metafunc.fixturenames:
        matrix = MATRIX if metafunc.config.getoption("--matrix") else {}
        pythons = [Python(HOST_PYTHON), *(Python(version, ROOTS / root) for version, root in matrix.items())]
        pairs = [(contained(python), source) for python in pythons for source in python.sources]
        metafunc.parametrize("inside, source", pairs, ids=str)


@pytest.fixture
def container() -> Iterator[Callable[..., Container]]:
    """`container(program, *args, python=...)` starts tests/targets/PROGRAM.py in a container and returns it, ready."""
    started: list[Container] = []

    def start(program: str, *args: str, python: Contained) -> Container:
        started.append(Container(python, program, *args))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.usually("agent")
@pytest.mark.parametrize("program", ["closures", "many_threads"])
def test_every_call_is_counted_under_its_name(
    program: str,
    inside: Contained,
    source: str,
    container: Callable[..., Container],
    traced: Callable[..., tuple],
    truth: Callable[..., dict[tuple[str, str, int], int]],
) -> None:
    expected = ours(truth(program, python=inside), inside)
    trace, _ = traced(container(program, "--wait", python=inside), "--source", source)
    assert counted(trace.directory, inside, source) == expected
    calls = trace.calls()
    # Threads have the host's numbers, those that lived for a millisecond too: else they would have no scheduling.
    assert set(calls["tid"]) <= set(trace.threads()["tid"])
    assert set(calls["pid"]) == {trace.manifest["target"]["pid"]}
    ended = reported(trace, calls[calls["status"] == "complete"])
    assert len(ended)
    assert (ended[SPLIT].sum(axis=1) == ended["wall_ns"]).all()


def test_children_born_in_it_are_followed(
    inside: Contained, source: str, container: Callable[..., Container], attach: Callable[..., Recorder]
) -> None:
    process = container("forks", "--wait", "--hold", python=inside)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.ready()
    wait_until(lambda: len(traced_by(recorder.directory, source)) == 6)
    process.go()
    facts = process.done()
    trace = pytrace_ebpf.open(recorder.stop())
    calls = trace.calls().merge(trace.functions(), on="func_id")
    assert Counter(calls[calls["name"] == "step"].groupby("pid").size()) == Counter(facts["steps"].values())
    assert set(calls["pid"]) <= set(trace.processes()["pid"])
    assert process.left_behind() == []


@pytest.mark.usually("usdt")
def test_waiting_for_the_gil_is_seen(inside: Contained, source: str, container: Callable[..., Container], traced: Callable[..., tuple]) -> None:
    trace, facts = traced(container("gil_fight", "1.0", "--wait", python=inside), "--source", source)
    calls = trace.calls().merge(trace.functions(), on="func_id")
    waited = calls[calls["name"] == "compute"]["gil_wait_ns"].sum() / 1e9
    # On a busy machine a thread that was given the GIL waits for a core as well.
    assert facts["gil_wait"] * 0.05 < waited < facts["gil_wait"] * 1.3


@pytest.mark.usually("agent")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "stopped"])
def test_nothing_stays_in_the_container(
    how: signal.Signals,
    inside: Contained,
    source: str,
    container: Callable[..., Container],
    attach: Callable[..., Recorder],
) -> None:
    process = container("spinner", "60", python=inside)
    maps = Path(f"/proc/{process.pid}/maps")
    for _ in range(2):
        recorder = attach(process.pid, "--source", source)
        recorder.process.send_signal(how)
        recorder.process.wait(PATIENCE_S)
        # The files are gone at once, and the agent leaves when it finds them gone.
        wait_until(lambda: not process.left_behind() and not has_agent(process.pid) and ".arena" not in maps.read_text())
    assert process.process.poll() is None


ROOMS = {
    "read-only": ("--read-only", "--tmpfs", "/tmp:size=64m", "--tmpfs", "/dev/shm:noexec,size=64m"),
    "noexec-tmp": ("--tmpfs", "/tmp:noexec", "--tmpfs", "/dev/shm:noexec,size=64m"),
    "all-but-shm-noexec": ("--read-only", "--tmpfs", "/tmp:noexec", "--tmpfs", "/run:noexec"),
    "tiny-shm": ("--tmpfs", "/tmp:size=1g", "--tmpfs", "/dev/shm:size=1m"),
    "another-user": (*DOCKER, "--user", "65534"),
}


@pytest.mark.parametrize("room", ROOMS)
def test_the_agent_finds_a_place(room: str, container: Callable[..., Container], attach: Callable[..., Recorder]) -> None:
    process = container("threads", "--wait", "--hold", python=contained(Python(HOST_PYTHON), *ROOMS[room]))
    recorder = attach(process.pid, "--source", "agent")
    process.go()
    expected = process.done()["calls"]
    trace = pytrace_ebpf.open(recorder.stop())
    assert not lost(trace)
    calls = trace.calls().merge(trace.functions(), on="func_id")["name"].value_counts()
    assert {name: calls[name] for name in expected} == expected
    assert process.left_behind() == []


def test_without_a_place_for_the_agent_the_error_is_one_sentence(container: Callable[..., Container], tmp_path: Path) -> None:
    nowhere = [word for place in PLACES for word in ("--tmpfs", f"{place}:noexec")]
    process = container("spinner", "60", python=contained(Python(HOST_PYTHON), "--read-only", *nowhere))
    words = [*COMMAND, "attach", "--source", "agent", "--pid", str(process.pid), "-o", str(tmp_path / "trace")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode in (3, 4)
    assert len(ended.stderr.splitlines()) == 1 and "noexec" in ended.stderr
    assert not (tmp_path / "trace").exists()
    assert process.left_behind() == []
