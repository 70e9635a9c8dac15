"""Native layers on libraries that export what PyTorch's, a BLAS and the CUDA runtime do: every call, its shapes, its place."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.kernel import uprobe_multi
from pytrace_ebpf.record.native.layers import NativeLayers
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import CallKind
from tests.bpf.conftest import Recorder, lost, reported, wait_until
from tests.conftest import PATIENCE_S, SOURCES, Target

LIBRARIES = {"libtorch_cpu.so": "TORCH", "libc10.so": "C10", "libopenblas.so.0": "BLAS", "libcudart.so.12": "CUDART"}
ROUNDS = 300
OPERATORS = {
    "aten::conv1d": 2,
    "aten::cat": 1,
    "aten::max_pool1d_with_indices": 1,
    "aten::add_": 1,
    "aten::matmul": 2,
    "aten::mm": 2,
}
CALLER = {
    **{name: {"forward"} for name in ("aten::conv1d", "aten::cat", "aten::max_pool1d_with_indices", "aten::add_")},
    "aten::matmul": {"multiply", "multiply_wrongly"},
    "aten::mm": {"aten::matmul"},
    "sgemm": {"gemm"},
    "dgemm": {"gemm"},
    "cudaLaunchKernel": {"launch"},
    "cudaMemcpyAsync": {"launch"},
    "cudaStreamSynchronize": {"launch"},
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-ins."""
    folder = tmp_path_factory.mktemp("libraries")
    source = Path(__file__).with_name("native_standin.c")
    for name, part in LIBRARIES.items():
        options = ["-O1", "-w", "-fPIC", "-shared", "-fno-optimize-sibling-calls", f"-D{part}"]
        subprocess.run(["cc", *options, "-o", str(folder / name), str(source)], check=True)
    return folder


@pytest.fixture
def native(
    libraries: Path,
    target: Callable[..., Target],
    traced: Callable[..., tuple[Trace, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Callable[..., Trace]:
    """`native(*options)`: the trace of ROUNDS rounds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def record(*options: str) -> Trace:
        trace, said = traced(target("native", "--wait", str(libraries), str(ROUNDS)), *options)
        assert said["errors"] == ROUNDS
        return trace

    return record


def test_every_call_where_probes_are_placed_one_by_one(libraries: Path, target: Callable[..., Target], monkeypatch: pytest.MonkeyPatch) -> None:
    """As before uprobe_multi, Linux 6.6."""
    monkeypatch.setattr(uprobe_multi, "serves", lambda: False)
    process = target("native", "--wait", str(libraries), str(ROUNDS))
    recorder = NativeLayers(Recording(Functions(), Processes()), ("operator", "blas", "cuda"), ())
    try:
        assert not recorder._probes.in_one_step
        recorder.add(process.pid)
        assert recorder._processes[process.pid].links and not recorder._failed
        monkeypatch.setattr(recorder, "look", lambda _: None)
        refused = [native.name for native, index in recorder._index.items() if index in recorder._unprobed]
        assert refused == ["aten::relu"], "whose first instruction no kernel probes"
        process.go()
        process.done()
        (calls,) = recorder.drain()["events"]
        assert not recorder.losses().any()
    finally:
        recorder.close()
    entries, returns = (Counter(calls["func_id"][calls["kind"] == kind].tolist()) for kind in (CallKind.ENTRY, CallKind.RETURN))
    indices = {native.name: recorder._func_ids[index] for native, index in recorder._index.items()}
    assert {name: entries[indices[name]] for name in OPERATORS} == {name: count * ROUNDS for name, count in OPERATORS.items()}
    assert entries.keys() == returns.keys()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.usually("agent")
def test_every_call_below_its_caller(native: Callable[..., Trace], source: str) -> None:
    trace = native("--source", source, "--layers", "torch,blas,cuda")
    assert lost(trace) == {}
    assert 0 < trace.manifest["cost"]["native_own_ns"] < trace.manifest["cost"]["native_ns_per_call"]
    functions = trace.functions().set_index("func_id")
    calls = trace.calls().set_index("call_id")
    calls["name"] = calls["func_id"].map(functions["name"])
    ours = calls[calls["layer"].isin(["operator", "blas", "cuda"])]
    expected = {name: times * ROUNDS for name, times in OPERATORS.items()} | {
        "sgemm": ROUNDS, "dgemm": ROUNDS, "cudaLaunchKernel": 2 * ROUNDS, "cudaMemcpyAsync": ROUNDS, "cudaStreamSynchronize": ROUNDS,
    }  # fmt: skip
    assert Counter(ours["name"]) == expected
    parents = ours["parent_id"].map(calls["name"])
    assert {name: set(parents[ours["name"] == name]) for name in expected} == CALLER
    # Half of the products were left by an exception, and nothing else was.
    assert Counter(ours[ours["status"] != "complete"]["name"]) == {"aten::matmul": ROUNDS, "aten::mm": ROUNDS}
    assert set(ours["status"]) == {"complete", "unwound"}
    assert set(calls.loc[calls["layer"] == "python", "status"]) <= {"complete", "open_at_start", "open_at_end"}
    known = reported(trace, ours)
    assert (known[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]].sum(axis=1) == known["wall_ns"]).all()


def test_shapes_and_messages(native: Callable[..., Trace]) -> None:
    trace = native("--layers", "torch,blas")
    names = trace.functions().set_index("func_id")["qualname"]
    rows = trace.arguments()
    rows["name"] = rows["func_id"].map(names)

    def seen(name: str, result: bool = False) -> list[tuple[list[Any], list[Any]]]:
        found = rows[(rows["name"] == name) & (rows["result"] == result)]
        return [
            ([None if s is None else list(s) for s in shapes], list(types)) for shapes, types in zip(found["shapes"], found["dtypes"], strict=True)
        ]

    with_bias, without = seen("aten::conv1d")[::2], seen("aten::conv1d")[1::2]
    f = "float32"
    assert with_bias == [([[n, 3, 10], [4, 3, 2], [4]], [f, f, f]) for n in range(ROUNDS)]
    assert without == [([[n, 3, 10], [4, 3, 2], None], [f, f, None]) for n in range(ROUNDS)]
    assert seen("aten::conv1d", result=True)[::2] == [([[n, 4, 9]], [f]) for n in range(ROUNDS)]
    assert seen("aten::cat") == [([[2], [2]], ["int64", "int64"])] * ROUNDS
    assert seen("aten::max_pool1d_with_indices", result=True) == [([[n, 1], [n, 1]], [f, "int64"]) for n in range(ROUNDS)]
    assert seen("aten::add_.Tensor") == [([[1, 2, 3, 4, 5], []], [f, f])] * ROUNDS
    assert seen("aten::mm")[1::2] == [([[2, 3], [5, 4]], [f, f])] * ROUNDS
    assert seen("sgemm_") == [([[5, 7], [7, 6]], [f, f])] * ROUNDS
    assert seen("cblas_dgemm64_") == [([[5, 7], [7, 6]], ["float64", "float64"])] * ROUNDS
    errors = trace.errors()
    assert errors["text"].tolist() == ["shapes cannot be multiplied"] * ROUNDS
    wrong = trace.calls()
    wrong = wrong[wrong["func_id"].map(names) == "aten::mm"]
    wrong = wrong[wrong["status"] == "unwound"]
    assert ((wrong["start_ns"].to_numpy() < errors["ts"]) & (errors["ts"] < wrong["end_ns"].to_numpy())).all()


def test_only_the_operators_that_were_asked_for(native: Callable[..., Trace]) -> None:
    trace = native("--operators", "aten::mat*", "--operators", "mm", "--operators", "cat")
    calls = trace.calls().merge(trace.functions(), on="func_id")
    asked = ("aten::matmul", "aten::mm", "aten::cat")
    assert Counter(calls[calls["layer"] == "operator"]["name"]) == {name: OPERATORS[name] * ROUNDS for name in asked}
    assert set(calls["layer"]) <= {"python", "operator", "gc", "import"}


def test_what_was_not_found_is_reported(native: Callable[..., Trace]) -> None:
    trace = native("--layers", "blas", "--operators", "aten::mat*", "--operators", "conv1dd", "--operators", "relu")
    facts = trace.manifest["native"]
    assert facts["layers"] == ["blas", "operator"]
    libraries = {path.rpartition("/")[2]: count for path, count in facts["functions"].items()}
    # Not even a function whose first instruction cannot be probed keeps the others from it.
    assert libraries == {"libtorch_cpu.so": 1, "libopenblas.so.0": 2}
    assert facts["tensors_read"] > ROUNDS and facts["tensors_unknown"] == 0
    pattern, refused = facts["missing"]
    assert pattern.startswith("--operators conv1dd matches no operator of this PyTorch; the nearest names: aten::conv1d, ")
    assert refused.startswith("1 function of ") and "libtorch_cpu.so without a probe: the kernel cannot" in refused


def test_without_the_libraries_there_is_a_sentence_for_each_layer(
    run: Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]],
) -> None:
    directory, ended = run([sys.executable, "-c", "pass"], "--layers", "torch,blas,cuda")
    assert ended.returncode == 0
    for what in ("PyTorch", "BLAS", "CUDA"):
        assert ended.stderr.count(f"no traced process has loaded {what}") == 1
    facts = pytrace_ebpf.open(directory).manifest["native"]
    assert [sentence[:29] for sentence in facts["missing"]] == ["no traced process has loaded "] * 3
    assert facts["functions"] == {}


def conv1d_of(recorder: Recorder, pid: int) -> pd.DataFrame:
    """What the first operator of every round was given, in a trace that may still be written."""
    trace = pytrace_ebpf.open(recorder.directory)
    given = trace.arguments().merge(trace.functions(), on="func_id")
    return given[(given["name"] == "aten::conv1d") & (given["pid"] == pid) & ~given["result"]].sort_values("ts")


@pytest.fixture
def loop(libraries: Path, target: Callable[..., Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Target]:
    """`loop(where)`: calls operators until tmp_path/enough is there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda where: target("native_loop", "--wait", str(libraries), str(tmp_path / "enough"), where)


def test_a_child_of_a_probed_process_is_traced(loop: Callable[..., Target], attach: Callable[..., Recorder], tmp_path: Path) -> None:
    process = loop("child")
    recorder = attach(process.pid, "--layers", "torch")
    process.go()
    # It has its parent's breakpoints in its memory from the first moment, and probes of its own a little later.
    wait_until(lambda: any(len(conv1d_of(recorder, pid)) for pid in children(process.pid)))
    (tmp_path / "enough").touch()
    said = process.done()
    assert said["status"] == 7
    recorder.finish()
    assert len(conv1d_of(recorder, process.pid)) == 2 * 10
    of_child = [shapes[0][0] for shapes in conv1d_of(recorder, said["child"])["shapes"]]
    first = of_child[0]
    assert of_child == [first + row // 2 for row in range(len(of_child))]  # once it is traced, nothing is missing or twice
    assert lost(pytrace_ebpf.open(recorder.directory)) == {}


def test_another_program_in_its_place_is_traced(loop: Callable[..., Target], attach: Callable[..., Recorder], tmp_path: Path) -> None:
    process = loop("exec")
    recorder = attach(process.pid, "--layers", "torch")
    process.go()
    wait_until(lambda: len(conv1d_of(recorder, process.pid)) > 2 * 10 + 100)
    (tmp_path / "enough").touch()
    assert process.done()["rounds"] > 50
    assert process.wait() == 0
    recorder.finish()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_operators_run_on_while_the_tracer_leaves(
    loop: Callable[..., Target], attach: Callable[..., Recorder], tmp_path: Path, how: signal.Signals
) -> None:
    process = loop("here")
    recorder = attach(process.pid, "--layers", "torch,blas,cuda")
    process.go()
    wait_until(lambda: len(conv1d_of(recorder, process.pid)) > 100)
    recorder.process.send_signal(how)
    assert recorder.process.wait(PATIENCE_S) == (0 if how == signal.SIGINT else -how)
    (tmp_path / "enough").touch()
    assert process.done()["rounds"] > 50
    assert process.wait() == 0
    assert conv1d_of(recorder, process.pid)["shapes"].map(lambda shapes: shapes[0][1]).eq(3).all()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_tracer_that_is_killed_leaves_no_probe(libraries: Path, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("native", "--wait", str(libraries), str(ROUNDS))
    recorder = attach(process.pid, "--layers", "torch,blas,cuda")
    recorder.process.kill()
    recorder.process.wait()
    process.go()
    assert process.done()["errors"] == ROUNDS
    assert process.wait() == 0
    assert pytrace_ebpf.open(recorder.directory).manifest["state"] == "recording"
