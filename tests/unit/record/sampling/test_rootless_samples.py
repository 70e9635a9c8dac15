"""`run` and `attach --rootless --sample` from end to end, as an ordinary user."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.test_samples import MOST_MIXED, SIGMAS, assert_shares, on_core, stacks_of
from tests.conftest import PATIENCE_S, REPOSITORY, TARGETS, Python
from tests.unit.options.test_rootless import NO_PERF, NOBODY, PYTHON, Run

OUTSIDE = REPOSITORY / "probes" / "remote_sampler" / "remote_sampler.so"
HZ = "199"
MOST_LATE = 0.2  # of all samples: on busy cores a look seldom meets a thread on one, and then stands for many periods at once
MOST_UNKNOWN = 0.5  # of those on a core: there none may meet it for a second
MOST_CALLING = 0.1  # of those on a core in a function that does nothing but a system call, where threads lose their cores
LEAST_TAKEN = 0.7  # a core that the hypervisor gives to others takes nobody's samples
QUEUED, GIL, BLOCKED = 1, 2, 3  # of samples.state

pytestmark = [
    pytest.mark.skipif(not OUTSIDE.exists(), reason=f"{OUTSIDE} is not built: run scripts/build-libraries.sh"),
    pytest.mark.measured,
]

SPEND = """
import os, sys, threading, time
def spend(seconds):
    began = time.thread_time()
    while time.thread_time() - began < seconds: sum(range(500))
"""
FAMILY = f"""{SPEND}
def parent(): spend(0.6)
def forked(): spend(0.6)
def second(): spend(0.6)
if sys.argv[1:] == ["second"]:
    second()
    sys.exit()
if len(sys.argv) > 1: sys.stdin.readline()
child = os.fork()
if not child:
    forked()
    os._exit(0)
other = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, __file__, "second"])
parent()
os.waitpid(child, 0), os.waitpid(other, 0)
os.execv(sys.executable, [sys.executable, __file__, "second"])
"""
WAITS = f"""{SPEND}
lock = threading.Lock()
def asleep(): time.sleep(0.8)
def locked(): lock.acquire()
def busy(): spend(0.4)
lock.acquire()
threads = [threading.Thread(target=each) for each in (asleep, locked, busy, busy)]
for thread in threads: thread.start()
threads[0].join()
lock.release()
"""


@pytest.fixture
def user(public_path: Path) -> list[str]:
    """Words that run a command as an ordinary user; none where that is what we are."""
    public_path.chmod(0o777)
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []


@pytest.fixture(params=["perf", "cputime"])
def before(request: pytest.FixtureRequest) -> list[str]:
    """Words before the tracer: with perf's switches, and without."""
    return NO_PERF if request.param == "cputime" else []


@pytest.fixture
def run(user: list[str], public_path: Path) -> Callable[..., Run]:
    """`run(*command, before=[])`: to its end, sampled."""

    def start(*command: str, before: Sequence[str] = ()) -> Run:
        ended = Run(public_path, [*user, *before], list(command), ("--sample", HZ)).end()
        assert ended.process.returncode == 0, ended.err
        return ended

    return start


@pytest.fixture
def started(user: list[str], public_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """`started(*command)`: a process of the ordinary user's, killed at the end."""
    processes = []

    def start(*command: str) -> "subprocess.Popen[str]":
        processes.append(subprocess.Popen([*user, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=public_path))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def attach(user: list[str], public_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """`attach(pid, *options)`: the tracer, started."""
    processes = []

    def start(pid: int, *options: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-m", "pytrace_ebpf", "attach", "-o", str(public_path / "trace"), "--rootless", "--pid", str(pid), *options]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(public_path)}
        processes.append(subprocess.Popen([*user, *words], stderr=subprocess.PIPE, text=True, cwd=public_path, env=environment))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def script(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def names_by_process(trace: Trace) -> dict[int, set[str]]:
    stacks, found = stacks_of(trace), dict[int, set[str]]()
    for pid, stack in trace.samples()[["pid", "stack_id"]].itertuples(index=False):
        found.setdefault(pid, set()).update(name for name, _ in stacks.get(stack, []))
    return found


def assert_told(trace: Trace, spent: dict[str, int], clocks: bool = True) -> None:
    """The shares of functions, and the time on a core in all, are those that tests/targets/shares.py says. `clocks`: the kernel says whether a thread has a core."""
    samples, stacks = on_core(trace), stacks_of(trace)
    names = ("short", "long", "generated", "hashed", "deep", "lines")
    told = Counter[str]()
    for name, ns in spent.items():
        told["lines" if "+" in name else name.partition(":")[2] or name] += ns
    counts = Counter(name for stack in samples["stack_id"] for name in {name for name, _ in stacks.get(stack, [])} & {*names})
    of = sum(counts.values())
    assert_shares(counts, {name: told[name] for name in names}, of, MOST_LATE)
    expected = sum(told[name] for name in names) / trace.manifest["sampling"]["period_ns"]
    chance, taken = SIGMAS * expected**0.5 + MOST_MIXED * expected, of + int((samples["stack_id"] == -2).sum())
    assert LEAST_TAKEN * expected - chance <= taken <= expected * 1.2 + chance, (of, taken, expected)
    calling = samples["stack_id"].map(lambda stack: stacks.get(stack, [])[-1:]).map(lambda frames: [name for name, _ in frames] == ["spend"])
    assert calling.mean() < MOST_CALLING or not clocks
    bottom = [frames for frames in stacks.values() if frames and frames[-1][0] == "down"]
    assert max(sum(name == "down" for name, _ in frames) for frames in bottom) == 1000
    assert trace.manifest["lost"].get("stack_depth", 0) == 0
    every = trace.samples()
    assert (every.loc[every["off_ns"] > 0, "stack_id"] == -2).mean() < 0.02
    assert (samples["stack_id"] == -2).mean() < MOST_UNKNOWN


def test_shares_are_those_that_the_program_says(run: Callable[..., Run], before: list[str]) -> None:
    ended = run(PYTHON, str(TARGETS / "shares.py"), "4", before=before)
    assert_told(ended.trace, ended.done["spent"], not before)
    for command in ("report", "info"):
        ended.says(command)


@pytest.mark.sources("agent")
def test_shares_on_every_python(
    python: Python, attach: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, target: Callable[..., object]
) -> None:
    """As the user who runs these: others need not reach all Pythons."""
    process = target("shares", "4", "--wait", python=python)
    words = [sys.executable, "-m", "pytrace_ebpf", "attach", "--rootless", "--sample", HZ, "-o", str(tmp_path / "trace"), "--pid", str(process.pid)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY) as tracer:
        assert tracer.stderr is not None
        assert next(line for line in tracer.stderr if "by sample" in line)  # past what is waited for
        process.go()
        said = process.done()
        assert tracer.wait(PATIENCE_S) == 0, tracer.stderr.read()
    assert_told(pytrace_ebpf.open(tmp_path / "trace"), said["spent"])


def test_what_threads_wait_for(run: Callable[..., Run], public_path: Path, before: list[str]) -> None:
    ended = run(PYTHON, script(public_path, WAITS), before=before)
    samples, stacks = ended.trace.samples(), stacks_of(ended.trace)
    inside = samples["stack_id"].map(lambda stack: {name for name, _ in stacks.get(stack, [])})
    for name in ("asleep", "locked"):
        waits = samples[inside.map(lambda names, name=name: name in names) & (samples["off_ns"] > 0)]
        assert set(waits["state"]) >= {BLOCKED}
        assert 0.5e9 < waits.loc[waits["state"] == BLOCKED, "off_ns"].sum() < 1.2e9 + 0.3 * waits["off_ns"].sum()
    busy = samples[inside.map(lambda names: "busy" in names)]
    assert (busy["state"] == GIL).any()
    assert (busy.loc[busy["off_ns"] == 0, "state"] == 0).all()
    report = ended.says("report")
    assert "GIL wait" in report and "not distinguished" not in report


def test_children_and_programs_in_their_place_are_sampled(run: Callable[..., Run], public_path: Path, before: list[str]) -> None:
    trace = run(PYTHON, script(public_path, FAMILY), before=before).trace
    by_process = names_by_process(trace)
    main = trace.manifest["target"]["pid"]
    assert {"parent", "second"} <= by_process.pop(main)
    assert sorted(sorted(names & {"forked", "second"}) for names in by_process.values()) == [["forked"], ["second"]]


def test_a_running_process_is_attached_to_and_its_children_are_followed(
    started: Callable[..., "subprocess.Popen[str]"], attach: Callable[..., "subprocess.Popen[str]"], public_path: Path
) -> None:
    process = started(PYTHON, script(public_path, FAMILY), "wait")
    tracer = attach(process.pid, "--sample", HZ)
    assert tracer.stderr is not None and process.stdin is not None
    assert next(line for line in tracer.stderr if "by sample" in line)  # past what is waited for
    process.stdin.write("\n")
    process.stdin.flush()
    assert tracer.wait(PATIENCE_S) == 0, tracer.stderr.read()
    by_process = names_by_process(pytrace_ebpf.open(public_path / "trace"))
    assert {"parent", "second"} <= by_process.pop(process.pid)
    assert {"forked", "second"} <= set().union(*by_process.values())


def test_a_program_that_ends_at_once_is_no_trouble(run: Callable[..., Run], before: list[str]) -> None:
    for command in (["/bin/true"], [PYTHON, "-c", "pass"]):
        ended = run(*command, before=before)
        assert ended.trace.manifest["state"] == "complete"
        subprocess.run(["rm", "-r", str(ended.directory)], check=True)


def test_a_program_that_is_killed_keeps_its_samples(
    started: Callable[..., "subprocess.Popen[str]"], attach: Callable[..., "subprocess.Popen[str]"], public_path: Path
) -> None:
    process = started(PYTHON, str(TARGETS / "busy.py"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    tracer = attach(process.pid, "--sample", HZ)
    assert tracer.stderr is not None and next(line for line in tracer.stderr if "by sample" in line)  # past what is waited for
    tracer.stderr.readline()  # it says how to stop it: it records
    spent = Path(f"/proc/{process.pid}/schedstat")
    begun = int(spent.read_text().split()[0])
    while int(spent.read_text().split()[0]) < begun + 500_000_000:
        time.sleep(0.05)
    process.kill()
    assert tracer.wait(PATIENCE_S) == 0
    trace = pytrace_ebpf.open(public_path / "trace")
    assert trace.manifest["state"] == "complete"
    assert "down" in names_by_process(trace)[process.pid]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--sample",), 4, "process 1 may not be inspected by this user"),
        ((), 2, "attach --rootless samples stacks"),
        (("--sample", "--source", "agent"), 2, "attach --rootless samples stacks"),
        (("--sample", "--budget", "5%"), 2, "--budget cannot go with --sample"),
    ],
)
def test_what_is_refused_is_one_sentence(attach: Callable[..., "subprocess.Popen[str]"], options: tuple[str, ...], code: int, said: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("who runs these is no root, and need not be able to become nobody")
    tracer = attach(1, *options)
    _, error = tracer.communicate(timeout=PATIENCE_S)
    assert tracer.returncode == code, error
    assert said in error and len(error.strip().splitlines()) == 1, error


def test_a_trace_says_how_it_was_made(run: Callable[..., Run], before: list[str]) -> None:
    trace = run(PYTHON, str(TARGETS / "shares.py"), "1", before=before).trace
    sampling = trace.manifest["sampling"]
    assert sampling == {"period_ns": round(1e9 / int(HZ)), "off_core": 1, "states": 1}
    assert trace.manifest["cost"]["sampling_ns"] > 0
    assert not len(trace.events())
    samples = trace.samples()
    assert samples["ts"].is_monotonic_increasing
    assert set(samples["cpu"]) == {-1}
    assert json.dumps(sampling)


def test_samples_beside_all_calls(user: list[str], public_path: Path) -> None:
    ended = Run(public_path, user, [PYTHON, str(TARGETS / "fib.py"), "29"], ("--sample", HZ, "--source", "agent")).end()
    assert ended.process.returncode == 0, ended.err
    trace = ended.trace
    assert trace.manifest["events"]["call"] >= 2 * ended.done["calls"]["fib"]
    assert len(trace.samples()) and "fib" in {name for frames in stacks_of(trace).values() for name, _ in frames}
