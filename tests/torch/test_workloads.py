"""The workloads train: their loss goes down, their phases are calls of functions so named, torch.fx can trace their models."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

INSIDE = Path(__file__).parent / "inside.py"
# As small as still learns.
SMALL = {
    "kim_cnn": "--embed-dim 32 --filters 32 --filter-size 2 3 --vocabulary 1000 --batch-size 16 --batches 40",
    "image_cnn": "--size 16 --channels 16 32 --learning-rate 0.003 --batches 20 --epochs 3",
    "rnn": "--cell gru --sentences 2",
    "gan": "--batches 40",
    "resnet": "--size 16 --width 8 --depth 1 1 --batches 40 --learning-rate 0.005",
    "mobilenet": "--size 16 --stages 4 --batches 40 --learning-rate 0.005",
}
FOR_FX = ("kim_cnn", "image_cnn", "resnet", "mobilenet")


@pytest.fixture
def inside(torch_python: Path) -> Callable[..., list[Any]]:
    """`inside(*questions)`: the answers of inside.py, all from one process: importing PyTorch takes seconds."""

    def ask(*questions: str) -> list[Any]:
        return list(json.loads(subprocess.check_output([torch_python, INSIDE, *questions], timeout=300)))

    return ask


@pytest.mark.parametrize("name", SMALL)
def test_its_loss_goes_down(name: str, workload: Callable[..., dict[str, Any]]) -> None:
    told = workload(name, *SMALL[name].split())
    assert told["workload"] == name
    assert told["threads"] == 1
    assert told["last_loss"] < 0.85 * told["first_loss"]


def test_every_step_has_its_phases(inside: Callable[..., list[Any]]) -> None:
    for name, calls in zip(SMALL, inside(*(f"calls:{name}" for name in SMALL)), strict=True):
        is_gan = name == "gan"
        # Given images are loaded twice more, to compare with.
        assert calls["load_batch"] == (4 if is_gan else 2), name
        # It has two networks.
        assert calls["backward"] == calls["step"] == (4 if is_gan else 2), name


def test_torch_fx_traces_the_models(inside: Callable[..., list[Any]]) -> None:
    for name, traced in zip(FOR_FX, inside(*(f"traced:{name}" for name in FOR_FX)), strict=True):
        assert traced["called"] == traced["modules"] != [], name
        assert traced["same"], name


def test_at_full_size_they_are_the_papers_networks(inside: Callable[..., list[Any]]) -> None:
    networks = {
        "kim_cnn": 5000 * 300 + (300 * 2 * 128 + 128) + (128 * 103 + 103),
        # With these images' stem and classes.
        "resnet --width 64 --depth 2 2 2 2": 11_173_962,
        "mobilenet --width 1": 2_236_682,
    }
    assert inside(*(f"parameters:{words}" for words in networks)) == list(networks.values())
