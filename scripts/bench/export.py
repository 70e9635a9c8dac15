"""What each export costs, side by side in one run: CPU time, calls a second, peak memory and size, each in a process of its own.

    python scripts/bench/export.py [--calls 5000000] [--keep DIR] [--only pprof chrome]

The trace is made as that of scripts/bench/read.py. Its tree is derived before; interpreter, imports and the tree's reading are in each figure.
Rows are calls for those that write each one, else contexts of the tree. The machine's load is printed: compare the lines of one run.
"""

import argparse
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from read import command, make

import pytrace_ebpf
from pytrace_ebpf.cli.export import FORMATS

EACH_CALL = ("perfetto", "chrome")  # the others are made of the tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5_000_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", nargs="+", choices=tuple(FORMATS), default=tuple(FORMATS))
    options = parser.parse_args()
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / str(options.calls)
        if not path.exists():
            make(path, options.calls)
        tree = pytrace_ebpf.open(path).tree()
        calls, contexts = int(tree["calls"].sum()), int((tree["depth"] >= 0).sum())
        print(f"{calls:,} calls, {contexts:,} contexts; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        print(f"{'':12}{'CPU':>9}{'peak':>11}{'size':>12}   calls a second of CPU time, bytes a call", flush=True)
        for to in options.only:
            out = Path(folder) / f"out-{to}"
            _, cpu, peak = command("export", str(path), "--to", to, "-o", str(out))
            size = out.stat().st_size
            out.unlink()
            each = f"{calls / cpu / 1e6:.1f} million, {size / calls:.0f}" if to in EACH_CALL else ""
            print(f"{to:12}{cpu:7.1f} s{peak:7.0f} MiB{size / 1e6:9.1f} MB   {each}", flush=True)


if __name__ == "__main__":
    main()
