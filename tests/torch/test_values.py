"""Tensors that functions are given: type, element type and sizes as PyTorch itself has them; by the agent and by probes."""

import json
import subprocess
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.agent_arena import Session
from tests.bpf.conftest import COMMAND
from tests.torch.conftest import PATIENCE_S
from tests.unit.record.agent.test_agent_values import rows

PROGRAM = """
import json, torch
class Mine(torch.Tensor): pass
def seen(a): return a
dtypes = "uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 bool bfloat16".split()
tensors = [torch.zeros(()), torch.zeros(0), torch.zeros(3, 4)]
tensors += [torch.zeros(2, 3, dtype=getattr(torch, name)) for name in dtypes]
tensors += [torch.zeros(2, 3).t(), torch.zeros(4, 5)[::2, 1:], torch.zeros((1, 2, 3, 4, 5)), torch.zeros((1, 2, 1, 2, 1, 2)), torch.zeros((2,) + (1,) * 20)]
tensors += [torch.nn.Parameter(torch.zeros(7)), torch.zeros(2, 2).as_subclass(Mine), torch.zeros(8, requires_grad=True) * 2, torch.zeros(0, 5)]
for tensor in tensors: seen(tensor)
seen(torch.Size([1, 2])); seen(torch.float32); seen(torch.zeros(2, 2, device="meta"))
print(json.dumps([[type(t).__qualname__, str(t.dtype).replace("torch.", ""), list(t.shape)] for t in tensors]))
"""


def test_tensors_have_their_type_element_type_and_sizes(torch_python: Path, tmp_path: Path) -> None:
    session = Session(tmp_path / "s", args=["shop.seen"])
    path = tmp_path / "s" / "shop.py"
    path.write_text(PROGRAM)
    done = subprocess.run([torch_python, path], env=session.preloaded, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    (arena,) = session.arenas()
    expected = json.loads(done.stdout)
    for what in ("argument", "return"):
        found = [row for row in rows(arena) if row["what"] == what and (row["name"] == "a" or what == "return")][-len(expected) - 3 :]
        assert [[row["type"], row["dtype"], row["shape"]] for row in found[1 : len(expected)]] == [
            [kind, dtype, shape[:20]] for kind, dtype, shape in expected[1:]
        ]  # fmt: skip
        # Until one with dimensions was seen a tensor without any could be something else.
        assert found[0]["type"] == "Tensor" and found[0]["shape"] in ([], None)
        assert [(row["type"], row["shape"]) for row in found[-3:]] == [("Size", [2]), ("dtype", None), ("Tensor", [2, 2])]


OF_NUMPY = """
import numpy
for a in (numpy.float64(2.5), numpy.float64("-inf"), numpy.float32(2.5), numpy.zeros((2, 3), "float32"), numpy.zeros(()),
          numpy.zeros(4, "int16").view(numpy.recarray)): seen(a)
"""


@pytest.mark.bpf
def test_tensors_and_numpys_scalars_by_probes(torch_python: Path, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM + OF_NUMPY)
    program = [str(torch_python), str(tmp_path / "shop.py")]
    # The import of PyTorch alone is a million calls, each of which costs microseconds by probes.
    words = [*COMMAND, "run", "-o", str(tmp_path / "trace"), "--source", "usdt", "--include", "shop", "--args", "shop.seen", "--", *program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    expected = [
        (kind, None, dtype if len(shape) <= 20 else None, shape if len(shape) <= 20 else None)  # more cannot be checked
        for kind, dtype, shape in json.loads(done.stdout)
    ]
    expected += [("Size", None, None, [2]), ("dtype", None, None, None), ("Tensor", None, "float32", [2, 2])]
    expected += [("float64", "2.5", None, None), ("float64", "-inf", None, None), ("float32", None, None, None)]
    expected += [("ndarray", None, "float32", [2, 3]), ("ndarray", None, "float64", []), ("recarray", None, "int16", [4])]
    trace = pytrace_ebpf.open(tmp_path / "trace")
    values = trace.values().astype(object)
    values = values.where(values.notna(), None)
    for what in ("argument", "return"):
        found = values[values["what"] == what].itertuples()
        assert [(row.type, row.value, row.dtype, row.shape if row.shape is None else list(row.shape)) for row in found] == expected
