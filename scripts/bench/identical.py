"""How often `diff --fail-over` fails where nothing differs: pairs of one and the same short program, recorded in turns, at the load that this machine has.

    scripts/bench/identical.py [--pairs 30] [--runs 3] [--fail-over 1%] [--load 0]

--load starts so many processes that compute beside it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytrace_ebpf
from pytrace_ebpf.amounts import share_of
from pytrace_ebpf.diff.judge import judge
from pytrace_ebpf.diff.sides import both, traces_in
from pytrace_ebpf.diff.verdict import RATE

PROGRAM = """
import threading, time
def score(k): return sum(i * i % 7 for i in range(k))
def parse(k): return [str(i) for i in range(k)]
def work():
    for _ in range(20): score(2000); parse(2000)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
time.sleep(0.01)
"""


def record(program: Path, trace: Path) -> None:
    subprocess.run([sys.executable, "-m", "pytrace_ebpf", "run", "-q", "-o", trace, "--", sys.executable, "-I", "-S", program], check=True)


def fails(folder: Path, value: str, share: float) -> tuple[bool, bool, int]:
    """Whether it is so, whether the means alone would say so, and of how many things."""
    traces = [[pytrace_ebpf.open(path) for path in traces_in(folder / side)] for side in ("a", "b")]
    judged = judge(*both(*traces, ("a", "b"), "run")[:2], "function", "self", value, share)
    return judged.slower, judged.found, judged.compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--fail-over", default="1%")
    parser.add_argument("--load", type=int, default=0)
    args = parser.parse_args()
    share = share_of("--fail-over", args.fail_over)
    counts = {value: [0, 0] for value in ("on_cpu", "wall")}
    with ExitStack() as stack:
        for _ in range(args.load):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        for pair in range(args.pairs):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            program = folder / "program.py"
            program.write_text(PROGRAM)
            for run in range(args.runs):
                for side in "ab":
                    (folder / side).mkdir(exist_ok=True)
                    record(program, folder / side / str(run))
            for value, count in counts.items():
                sure, found, compared = fails(folder, value, share)
                count[0] += sure
                count[1] += found
                print(
                    f"pair {pair + 1}, {value}: {'FAILS' if sure else 'passes'}; the means alone {'fail' if found else 'pass'}; {compared} compared",
                    flush=True,
                )
    print(
        f"\n{args.pairs} pairs of {args.runs} runs each of one program, --fail-over {args.fail_over}, load {args.load} + {os.getloadavg()[0]:.1f} before:"
    )
    for value, (sure, found) in counts.items():
        print(f"  by {value}: {sure} fail ({sure / args.pairs:.0%}; {RATE:.0%} is the most to expect); by the means alone {found}")


if __name__ == "__main__":
    main()
