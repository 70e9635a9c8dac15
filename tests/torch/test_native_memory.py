"""A tensor's memory is seen: of the functions that make tensors of known sizes, keep them and drop them."""

import subprocess
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, lost
from tests.torch.conftest import PATIENCE_S

LARGE, SMALL, COUNT, MANY = 1_000_000, 5_000, 50, 5_000  # numbers of a tensor, of four bytes each; tensors
PROGRAM = f"""
import torch
torch.set_num_threads(1)
def keep(): return [torch.empty({LARGE}) for _ in range({COUNT})]
def drop():
    for _ in range({COUNT}): torch.empty({LARGE})
def small(): return [torch.empty({SMALL}) for _ in range({MANY})]
torch.empty(1)
print("ready", flush=True)
input()
kept = keep(), small()
drop()
"""


def test_tensors_are_charged_to_the_functions_that_make_them(torch_python: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen([torch_python, tmp_path / "program.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        words = [*COMMAND, "attach", "--pid", str(process.pid), "-o", str(tmp_path / "trace"), "--native-memory"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None and tracer.stderr.readline().startswith("tracing process")
            process.communicate("\n", timeout=PATIENCE_S)
            tracer.communicate(timeout=PATIENCE_S)
            assert (process.returncode, tracer.returncode) == (0, 0)
    trace = pytrace_ebpf.open(tmp_path / "trace")
    rows = trace.memory().merge(trace.functions(), on="func_id").drop_duplicates("name").set_index("name")
    large, small = 4 * LARGE * COUNT, 4 * SMALL * MANY
    assert rows["native_bytes"]["keep"] == rows["native_kept_bytes"]["keep"] == pytest.approx(large, rel=0.02)
    assert rows["native_bytes"]["drop"] == pytest.approx(large, rel=0.02) and rows["native_kept_bytes"]["drop"] <= 0.02 * large
    error = (small * (trace.manifest["native_memory"]["sample_bytes"] - 4 * SMALL)) ** 0.5
    assert rows["native_bytes"]["small"] == pytest.approx(small, abs=6 * error + 0.02 * small)  # and the tensors' own objects
    assert not lost(trace)
