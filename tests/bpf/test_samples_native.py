"""Native frames of sampled stacks: which function of C was below which of Python, and that nothing is invented."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.tree import nodes
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.sampling.samples import Samples
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.reader import Trace
from tests.bpf.conftest import Recorder, wait_until
from tests.conftest import HOST_PYTHON, TARGETS, Python, Target

pytestmark = pytest.mark.gil

HZ, SECONDS = 499, "4"
SURE = 0.9  # of the samples: the others were taken while the files were being read, or in an instruction on the way

every_python = pytest.mark.sources("agent")
Frames = list[tuple[str, str]]  # (name, library or "" of a Python function), outermost first


def mixed_stacks(trace: Trace) -> dict[int, Frames]:
    """The frames of each stack by stack_id."""
    functions = trace.functions().set_index("func_id")
    native = functions["function_layer"] == "native"
    names = {func_id: (name, module if native[func_id] else "") for func_id, name, module in functions[["name", "module"]].itertuples()}
    found: dict[int, Frames] = {-1: []}
    for row in trace.stacks().itertuples():
        found[row.stack_id] = [*found[row.parent_id], names.get(row.func_id, ("?", ""))]
    return found


@pytest.fixture
def sampled(attach: Callable[..., Recorder], target: Callable[..., Target]) -> Callable[..., tuple[Trace, list[Frames]]]:
    """`sampled(program, python, *options)`: a trace, and the stack of each sample on a core of its target's main thread in Python."""

    def sample(program: str, python: Python, *options: str) -> tuple[Trace, list[Frames]]:
        process = target(program, "--wait", SECONDS, python=python)
        recorder = attach(process.pid, "--sample", str(HZ), *options)
        process.go()
        process.done()
        trace = pytrace_ebpf.open(recorder.finish())
        samples, stacks = trace.samples(), mixed_stacks(trace)
        mine = samples[(samples["off_ns"] == 0) & (samples["tid"] == process.pid)]
        return trace, [frames for stack in mine["stack_id"] if python_of(frames := stacks.get(stack, []))]

    return sample


def python_of(frames: Frames) -> list[str]:
    return [name for name, library in frames if not library]


@every_python
def test_native_code_stands_below_the_function_that_called_it(python: Python, sampled: Callable[..., tuple[Trace, list[Frames]]]) -> None:
    _, stacks = sampled("native_below", python)
    compressing = [frames for frames in stacks if python_of(frames)[-1:] == ["compresses"]]
    assert len(compressing) >= 50
    assert sum(any(library.startswith("libz.so") for _, library in frames) for frames in compressing) >= SURE * len(compressing)
    for frames in stacks:
        for at, (_, library) in enumerate(frames):
            if library.startswith("libz.so"):
                assert python_of(frames[:at])[-1] == "compresses" and not python_of(frames[at:]), frames


@every_python
def test_native_frames_stand_between_those_of_python(python: Python, sampled: Callable[..., tuple[Trace, list[Frames]]]) -> None:
    """Where the interpreter has symbols; and whatever it has, Python's frames are in their order, without one more or less."""
    trace, stacks = sampled("native_below", python)
    named = "list_sort" in set(trace.functions()["name"])
    between = Counter[bool]()
    for frames in stacks:
        inner = python_of(frames)
        assert inner[0] == "<module>", frames
        assert "key" not in inner or inner[inner.index("key") - 1] == "sorts", frames
        assert "deep" not in inner or inner.count("deep") <= 301
        names = [name for name, _ in frames]
        if "key" in inner and "deep" not in inner:  # that is whole: less than NATIVE_FRAMES
            between["list_sort" in names[names.index("sorts") : names.index("key")]] += 1
    assert between.total() >= 10
    assert not named or between[True] >= SURE * between.total()


@every_python
def test_what_is_not_known_is_counted(python: Python, sampled: Callable[..., tuple[Trace, list[Frames]]]) -> None:
    trace, stacks = sampled("native_below", python)
    assert trace.manifest["lost"].get("sample_native", 0) <= (1 - SURE) * len(trace.samples()) + HZ
    assert sum(not library for frames in stacks for _, library in frames[:1]) == len(stacks)  # what only began the interpreter is left out


def test_threads_of_c_have_their_stacks(tmp_path: Path, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """One that runs no Python, and outside of all Python frames one that C code called them from."""
    library = tmp_path / "outwards.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, TARGETS / "outwards.c"], check=True)
    process = target("outwards", str(library), SECONDS, "--wait")
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    stacks = mixed_stacks(trace)
    found = [stacks.get(stack, []) for stack in trace.samples().query(f"off_ns == 0 and tid != {process.pid}")["stack_id"]]
    computing = [frames for frames in found if ("computes", library.name) in frames]
    assert len(computing) >= SURE * sum(not python_of(frames) for frames in found) >= 20
    assert all(frames[-1] == ("computes", library.name) and not python_of(frames) for frames in computing)
    spinning = [frames for frames in found if "spins" in python_of(frames)]
    outside = [frames for frames in spinning if ("calls_back", library.name) in frames]
    assert len(outside) >= SURE * len(spinning) >= 20
    for frames in outside:
        assert frames.index(("calls_back", library.name)) < frames.index(("spins", ""))
        assert not any(name.startswith(("libc.so", "python")) for _, name in frames[: frames.index(("spins", ""))])
    by_function = nodes(trace)
    names = trace.functions().set_index("func_id")["name"]
    assert by_function.loc[by_function["func_id"].map(names) == "computes", "self_on_cpu_ns"].sum() > 0


def test_code_that_comes_later_is_found_or_counted(sampled: Callable[..., tuple[Trace, list[Frames]]]) -> None:
    trace, stacks = sampled("late_code", Python(HOST_PYTHON))
    compressing = [frames for frames in stacks if python_of(frames)[-1:] == ["compresses"]]
    assert len(compressing) >= 20
    assert sum(any(library.startswith("libz.so") for _, library in frames) for frames in compressing) >= len(compressing) / 2
    spinning = [frames for frames in stacks if python_of(frames)[-1:] == ["spins"]]
    nowhere = [frames for frames in spinning if not frames[-1][1]]  # within the instructions that no file has
    assert len(nowhere) >= SURE * len(spinning) >= 10
    assert trace.manifest["lost"]["sample_native"] >= SURE * len(nowhere)


def test_beside_exact_calls_it_says_what_they_were_spent_in(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    from pytrace_ebpf.view.sampled import found_below

    process = target("native_below", "--wait")
    recorder = attach(process.pid, "--sample", str(HZ), "--source", "agent")
    process.go()
    process.done()
    below = {each["qualname"]: each["parts"] for each in found_below(pytrace_ebpf.open(recorder.finish()))}
    assert below["compresses"][0]["library"].startswith("libz.so")


def test_where_the_kernel_refuses_there_are_samples_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Programs.program

    def refusing(self: Programs, name: str, *rest: int) -> int:
        if name.startswith("natives"):
            raise HostError("the kernel refuses natives (too complex)")
        return real(self, name, *rest)

    monkeypatch.setattr(Programs, "program", refusing)
    samples = Samples(Recording(Functions(), Processes()), HZ, follow=False)
    assert samples.missing() == ("native frames are not sampled: the kernel refuses natives (too complex)",)
    samples.stop()
    samples.close()


@pytest.mark.parametrize("ends", ["tracer", "target"])
def test_either_may_be_killed_while_stacks_are_sampled(ends: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("native_below", "--wait", "600")
    recorder = attach(process.pid, "--sample", "4999")
    process.go()
    wait_until(lambda: bool(len(pytrace_ebpf.open(recorder.directory).samples())))  # a segment is closed, and in the manifest
    os.kill(recorder.process.pid if ends == "tracer" else process.pid, signal.SIGKILL)
    if ends == "tracer":
        recorder.process.wait()
        assert process.process.poll() is None
        trace = pytrace_ebpf.open(recorder.directory)
        assert trace.manifest["state"] != "complete"
        process.kill()
    else:
        assert recorder.process.wait() == 0
        trace = pytrace_ebpf.open(recorder.directory)
        assert trace.manifest["state"] == "complete"
    assert process.wait() == -signal.SIGKILL
    assert len(trace.samples()) and set(trace.samples()["stack_id"]) <= {*trace.stacks()["stack_id"], -1, -2}
