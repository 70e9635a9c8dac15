"""Run by PyTorch's own Python: a network whose second layer does not fit the first one, tried again and again."""

import sys

import torch
from torch import nn


def forward(network: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return network(x)


network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(9, 3))
x = torch.ones(4, 6)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    try:
        forward(network, x)
    except RuntimeError:
        continue
