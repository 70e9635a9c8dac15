"""Run by calibrate.py in the target's own interpreter, so plain enough for every Python 3: ns per call of fib, when asked."""

import sys
from time import perf_counter

ROUNDS, CALLS = 5, 3193  # fib(16) makes 3193 calls


def fib(n: int) -> int:
    """The n-th Fibonacci number, slowly."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


for _ in sys.stdin:
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        fib(16)
        times.append((perf_counter() - start) / CALLS * 1e9)
    sys.stdout.write(str(sorted(times)[ROUNDS // 2]) + "\n")
    sys.stdout.flush()
