"""Run by PyTorch's own Python: trains the text CNN for ever, and counts the batches in a file of eight bytes.

batches.py FILE [OPTION of kim_cnn.py]...
"""

import mmap
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "workloads"))
import kim_cnn
import training

done = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8)


def count_batches(train_batch):
    def counted(*batch):
        loss = train_batch(*batch)
        done[:] = (int.from_bytes(done, "little") + 1).to_bytes(8, "little")
        return loss

    return counted


args = kim_cnn.options().parse_args(sys.argv[2:])
training.set_up(args)
model, data = kim_cnn.build(args), kim_cnn.make_data(args)
train_batch = count_batches(training.supervised(args, model, torch.nn.BCEWithLogitsLoss()))
training.train_epoch(args, data, train_batch)
print("ready", flush=True)
while True:
    training.train_epoch(args, data, train_batch)
