"""Tensors that functions are given, as the agent reports them: type, element type and sizes as PyTorch itself has them."""

import json
import subprocess
from pathlib import Path

from tests.agent_arena import Session
from tests.torch.conftest import PATIENCE_S
from tests.unit.test_agent_values import rows

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
