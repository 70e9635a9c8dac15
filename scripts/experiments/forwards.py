"""Run under PyTorch's own Python: forward passes of scripts/workloads/kim_cnn.py in many sizes, which take turns.

Each word is a model, `k,d_e,d_c,N,l` (filter size, embedding, filters, words, classes).
"""

import argparse
import json
import resource
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "workloads"))
import kim_cnn

OPTIONS = ("--filter-size", "--embed-dim", "--filters", "--length", "--classes")


def main() -> None:
    """Say `ready`, wait for a line on stdin, and run every model once in each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("sizes", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = []
    for size in args.sizes:
        words = [word for pair in zip(OPTIONS, size.split(","), strict=True) for word in pair]
        options = kim_cnn.options().parse_args([*words, "--vocabulary", "1000"])
        models.append((kim_cnn.build(options), torch.randint(1000, (args.batch_size, options.length))))
    if args.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(args.rounds):
        for model, documents in models:
            model(documents)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(json.dumps({"passes": len(models) * args.rounds, "page_faults": faults}), flush=True)


if __name__ == "__main__":
    main()
