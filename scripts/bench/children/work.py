"""Some work, for profilers that start a program: writes the seconds of CPU and of wall time that it took into a file.

work.py fib|orders|kim_cnn PIECES FILE
"""

import sys
import time
from pathlib import Path


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def of_fib():
    return lambda: fib(18)


def of_orders():
    import json

    import orders

    order = json.dumps(orders.ITEMS).encode()
    return lambda: orders.answer(order)


def of_kim_cnn():
    sys.path.insert(0, str(Path(__file__).parents[2] / "workloads"))
    import kim_cnn
    import torch
    import training

    args = kim_cnn.options().parse_args(["--threads", "1", "--batches", "1"])
    training.set_up(args)
    model, data = kim_cnn.build(args), kim_cnn.make_data(args)
    train_batch = training.supervised(args, model, torch.nn.BCEWithLogitsLoss())
    return lambda: training.train_epoch(args, data, train_batch)


def main():
    piece = {"fib": of_fib, "orders": of_orders, "kim_cnn": of_kim_cnn}[sys.argv[1]]()
    piece()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(int(sys.argv[2])):
        piece()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    Path(sys.argv[3]).write_text(f"{cpu} {wall}")


main()
