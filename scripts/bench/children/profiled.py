"""Run by PyTorch's own Python: profiled.py WORKLOAD [OPTION...] trains it under torch.profiler and prints what operators that saw, JSON."""

import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "workloads"))
training = importlib.import_module("training")
train, say = training.train, training.say
profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)


def trained(*args: Any) -> Any:
    profile.start()
    return train(*args)


def said(*args: Any) -> None:
    profile.stop()
    say(*args)


training.train, training.say = trained, said
importlib.import_module(sys.argv[1]).main(sys.argv[2:])
threads, total_us = defaultdict(list), defaultdict(float)
for event in profile.events():
    if event.name.startswith("aten::"):
        threads[event.thread].append((event.time_range.start, -event.time_range.end, event.name))
        total_us[event.name] += event.time_range.elapsed_us()
print(json.dumps({"order": [[name for _, _, name in sorted(rows)] for rows in threads.values()], "total_us": total_us}))
