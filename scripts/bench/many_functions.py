"""What a call costs by the agent in a small loop, as a recording measures it, and in a program of many functions: fib, and 4,000 functions in random order.

scripts/bench/many_functions.py [--python /usr/bin/python3.11] [--rounds 5] [--seconds 1]

CPU time of the program, untraced and recorded by turns; medians.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import json, random, sys, time

SECONDS, COUNT, DEPTH = float(sys.argv[1]), 4000, 10

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

random.seed(4)
made = []
for number in range(COUNT):
    body = "".join(f"    x{at} = a + {at}\\n" for at in range(random.randrange(1, 8)))
    made.append(f"def f{number}(a, depth):\\n{body}    return ALL[(a * {random.randrange(1, COUNT)} + {number}) % {COUNT}](a + 1, depth - 1) if depth else a\\n")
space = {}
exec("".join(made), space)
ALL = space["ALL"] = [space[f"f{number}"] for number in range(COUNT)]
random.shuffle(ALL)

def small():
    fib(18)
    return 8361

def many():
    for number in random.sample(range(COUNT), 100):
        ALL[number](number, DEPTH - 1)
    return 100 * DEPTH

def ns_of_a_call(work):
    calls, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        calls += work()
    return (time.process_time() - began) / calls * 1e9

print(json.dumps({work.__name__: ns_of_a_call(work) for work in (small, many)}))
"""


def measured(python: str, seconds: float, tracer: list[str]) -> dict[str, float]:
    """ns of a call by program."""
    done = subprocess.run([*tracer, python, "-c", PROGRAM, str(seconds)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    rounds = []
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            tracer = [sys.executable, "-m", "pytrace_ebpf", "run", "-q", "--source", "agent", "-o", str(Path(folder) / "trace"), "--"]
            rounds.append([measured(args.python, args.seconds, each) for each in ([], tracer)])
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    for name in rounds[0][0]:
        alone, traced = (statistics.median(each[at][name] for each in rounds) for at in (0, 1))
        print(f"{name:6} alone {alone:5.0f} ns a call, recorded {traced:5.0f}: {traced - alone:5.0f} more")


if __name__ == "__main__":
    main()
