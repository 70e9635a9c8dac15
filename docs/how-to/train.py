"""A network trained on two threads whose batches are made by a third function on one: python3 train.py [STEPS]."""

import sys

import torch


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [[(i * j) % 17 / 17 for j in range(256)] for i in range(size)]  # Python makes every number
    return torch.tensor(rows), torch.ones(size, 1)


def train(steps: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        given, wanted = make_batch(512)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(given), wanted).backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    train(int(sys.argv[1]) if sys.argv[1:] else 20)
