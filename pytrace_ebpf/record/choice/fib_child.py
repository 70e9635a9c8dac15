"""Run in the interpreter that is measured, so plain enough for every Python 3: ns per call of fib(N), when asked.

fib_child.py [N=16]: for each line on stdin, five runs and the median of them.
"""

import sys
from time import perf_counter

ROUNDS = 5


def fib(n: int) -> int:
    """The n-th Fibonacci number, slowly."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


n = int(sys.argv[1]) if len(sys.argv) > 1 else 16
calls = 2 * fib(n + 1) - 1
for _ in sys.stdin:
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        fib(n)
        times.append((perf_counter() - start) / calls * 1e9)
    sys.stdout.write(str(sorted(times)[ROUNDS // 2]) + "\n")
    sys.stdout.flush()
