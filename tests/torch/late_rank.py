"""A training whose ranks wait for rank LATE, which is slow by WHY (data or work); writes what its own timers say of each step to OUT-RANK.json, in ns."""

import json
import os
import sys
import time
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

STEPS, ITEMS, MS_10 = 12, 4, 10_000_000
WHY, OUT = sys.argv[1:]
RANK = int(os.environ["RANK"])
IS_LATE = int(os.environ["LATE"]) == RANK


class Items(Dataset):
    """Of the late rank each takes a while to come."""

    def __len__(self) -> int:
        return STEPS * ITEMS

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        if WHY == "data" and IS_LATE:
            time.sleep(MS_10 / 1e9)
        return torch.ones(32), at % 4


class Net(nn.Module):
    """Of the late rank it computes more than it has to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 4)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        until = time.thread_time_ns() + 4 * MS_10 * (WHY == "work" and IS_LATE)
        while time.thread_time_ns() < until:
            pass
        return self.layer(items)


def train() -> list[dict[str, Any]]:
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer, criterion = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    took, now = [], time.perf_counter_ns
    batches = iter(DataLoader(Items(), batch_size=ITEMS, num_workers=1))
    for _ in range(STEPS):
        start = now()
        items, targets = next(batches)
        data = now()
        out = model(items)
        forward = now()
        criterion(out, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append({"step": now() - start, "data": data - start, "forward": forward - data})
    next(batches, None)
    return took


torch.set_num_threads(1)
distributed.init_process_group("gloo")
with open(f"{OUT}-{RANK}.json", "w", encoding="utf-8") as file:  # noqa: PTH123
    json.dump(train(), file)
distributed.destroy_process_group()
