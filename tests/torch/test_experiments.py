"""The experiments answer their questions with one command each: small runs, whose reports say what those runs did."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.experiment.data import open_experiment
from tests.torch.conftest import PATIENCE_S

EXPERIMENTS = Path(__file__).parents[2] / "scripts" / "experiments"
sys.path.insert(0, str(EXPERIMENTS))
import complexity  # noqa: E402
import cores  # noqa: E402
import networks  # noqa: E402


@pytest.fixture
def experiment(torch_python: Path, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """`experiment(name, *options)` does one, and returns its directory and its report, in which every picture is there."""

    def carry_out(name: str, *options: str) -> tuple[Path, str]:
        folder = tmp_path / name
        words = [sys.executable, str(EXPERIMENTS / f"{name}.py"), "-o", str(folder), *options]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
        assert done.stdout == f"{folder / 'report.md'}\n"
        report = (folder / "report.md").read_text()
        pictures = re.findall(r"\]\(([^)]*)\)", report)
        assert pictures and all((folder / picture).stat().st_size > 1000 for picture in pictures)
        assert "nan" not in report
        return folder, report

    return carry_out


def test_an_exponent_is_the_slope_on_the_large_end() -> None:
    work = np.array([1.0, 2, 4, 8, 16])
    rows = pd.DataFrame({"work": work, "on_cpu_ns": np.array([100, 100, *(7 * work[2:] ** 1.25)])})
    assert complexity.exponent(rows) == pytest.approx(1.25)


@pytest.mark.bpf
def test_sizes_of_the_convolution_are_read_from_its_tensors(experiment: Callable[..., tuple[Path, str]]) -> None:
    folder, report = experiment("complexity", "--rounds", "3", "--batch-size", "2", "--shrink", "9")
    table = complexity.measured(pytrace_ebpf.open(folder / "traces" / "as-is"))
    convolution = table[table["operator"] == "aten::conv1d"]
    sizes = {tuple(value for _, value in key) for key in convolution["key"]}
    varied = {(2, k, d_e, d_c, words - k + 1) for k, d_e, d_c, words in [
        *((k, 300, 128, 124) for k in (1, 2, 4)), *((2, d_e, 128, 124) for d_e in (75, 150, 300)),
        *((2, 300, d_c, 124) for d_c in (32, 64, 128)), *((2, 300, 128, words) for words in (31, 62, 124)),
    ]}  # fmt: skip
    assert sizes == varied
    assert (convolution["flops"] == 2 * convolution["work"]).all()
    assert (convolution["calls"] >= 2).all()
    assert (convolution["kernel_ns"] + convolution["reorder_ns"] <= 1.5 * convolution["on_cpu_ns"]).all()
    assert "k·d_e·d_c·N" in report


@pytest.mark.bpf
def test_a_core_that_is_not_given_is_not_used_and_one_thread_has_no_workers(experiment: Callable[..., tuple[Path, str]]) -> None:
    folder, report = experiment("cores", "--repeat", "1", "--batches", "2", "--batch-size", "8")
    done = open_experiment(folder)
    assert [run["setting"] for run in done.runs] == [case.says for case in cores.cases()]
    for run, case in zip(done.runs, cores.cases(), strict=True):
        busy = cores.busy(pytrace_ebpf.open(folder / run["trace"]))
        assert case.setting.cpus and set(busy["cpu"]) <= set(case.setting.cpus)
        assert busy.groupby("cpu")["share"].sum().max() <= 1
        assert ("worker" in set(busy["thread"])) == (case.setting.threads == 2 and not case.words)
    assert "Does one thread sit on two half-used cores?" in report


@pytest.mark.bpf
def test_without_onednn_the_blas_is_another(experiment: Callable[..., tuple[Path, str]]) -> None:
    _, report = experiment("blas", "--repeat", "1", "--batches", "2")
    functions = [line for line in report.splitlines() if line.startswith("| `dnnl_") or line.startswith("| `sgemm`")]
    assert [line.split(" | ")[1:3] for line in functions if "dnnl" in line] == [["oneDNN", "with oneDNN"]]
    assert {line.split(" | ")[2] for line in functions if "sgemm" in line} == {"with oneDNN", "without oneDNN"}


@pytest.mark.bpf
def test_phases_of_a_step_are_all_of_it_and_do_not_overlap(experiment: Callable[..., tuple[Path, str]]) -> None:
    folder, report = experiment("networks", "--networks", "gan", "--batches", "3", "--large-batches", "2", "--shrink", "64")
    rows = networks.phases(pytrace_ebpf.open(folder / "traces" / "gan"))
    once = ["data", *["forward"] * 3, "loss", "loss", "backward", "optimizer", "forward", "loss", "backward", "optimizer"]
    assert [sorted(own["phase"]) for _, own in rows.groupby("step")] == [sorted(once)] * 3
    assert (rows["start_ns"].to_numpy()[1:] >= rows["end_ns"].to_numpy()[:-1]).all()
    assert "## gan" in report and "`aten::convolution_backward`" in report


def test_a_directory_of_something_else_is_left_alone(torch_python: Path, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "mine").touch()
    done = subprocess.run([sys.executable, str(EXPERIMENTS / "blas.py"), "-o", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1 and "holds something else" in done.stderr
    assert (tmp_path / "traces" / "mine").exists()
