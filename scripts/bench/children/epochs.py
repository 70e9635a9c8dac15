"""Run by PyTorch's own Python: for each line on stdin, ns of CPU that an epoch of the text CNN takes under a tracer of its own.

CPU time of the whole process, not the clock's: on a core that others use too it says the same.

epochs.py plain|profiler|viztracer [OPTION of kim_cnn.py]...
"""

import contextlib
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "workloads"))
import kim_cnn
import training


@contextlib.contextmanager
def tracer(mode):
    if mode == "profiler":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, record_shapes=True):
            yield
    elif mode == "viztracer":
        from viztracer import VizTracer

        recorder = VizTracer(verbose=0, tracer_entries=5_000_000)
        recorder.start()
        yield
        recorder.stop()
        recorder.clear()
    else:
        yield


args = kim_cnn.options().parse_args(sys.argv[2:])
training.set_up(args)
model, data = kim_cnn.build(args), kim_cnn.make_data(args)
train_batch = training.supervised(args, model, torch.nn.BCEWithLogitsLoss())
for _ in sys.stdin:
    with tracer(sys.argv[1]):
        start = time.process_time_ns()
        training.train_epoch(args, data, train_batch)
        took = time.process_time_ns() - start
    print(took, flush=True)
