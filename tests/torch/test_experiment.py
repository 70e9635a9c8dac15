"""A training run under two settings, by module: the network's own classes in their places, with the operators in them."""

import json
import subprocess
from pathlib import Path

import pandas as pd

from tests.bpf.conftest import COMMAND
from tests.torch.conftest import PATIENCE_S, WORKLOADS

BATCHES = 3
INSIDE = ("Embedding", "Conv1d", "ReLU", "MaxPool1d", "Dropout", "Linear")
SETTINGS = ("threads=1", "threads=2")


def test_rows_by_module_are_the_networks_own(torch_python: Path, tmp_path: Path) -> None:
    program = [str(torch_python), str(WORKLOADS / "kim_cnn.py"), "--batches", str(BATCHES), "--batch-size", "8"]
    show = ["--by", "nn.Module", "--sort", "total", "--json"]
    # Imports are most of what such a run calls, and none of what is looked at.
    options = ["--threads", "1", "--threads", "2", "--repeat", "1", "--layers", "torch", "--include", "torch.nn.modules.*", "--include", "kim_cnn"]
    words = [*COMMAND, "experiment", *options, *show, "-q", "-o", str(tmp_path / "out"), "--", *program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    total = pd.DataFrame(facts["by"]["nn.Module"]).set_index(["setting", "module"])
    again = subprocess.run(
        [*COMMAND, "experiment", "--report", str(tmp_path / "out"), "--by", "nn.Module", "--json"], stdout=subprocess.PIPE, check=True, timeout=100
    )
    own = pd.DataFrame(json.loads(again.stdout)["by"]["nn.Module"]).set_index(["setting", "module"])
    expected = {"KimCNN", "BCEWithLogitsLoss", *(f"KimCNN.{name}" for name in INSIDE)}
    for setting in SETTINGS:
        assert total.loc[setting]["calls"].to_dict() == own.loc[setting]["calls"].to_dict() == dict.fromkeys(expected, BATCHES)
        parts = own.loc[setting]["wall_ns"].drop("BCEWithLogitsLoss")
        assert parts.sum() == total.loc[(setting, "KimCNN"), "wall_ns"]
        assert parts["KimCNN.Conv1d"] == total.loc[(setting, "KimCNN.Conv1d"), "wall_ns"]
