"""Target of record.py: at each line on stdin runs fib(N) five times and prints the median time in ns."""

import sys
from time import perf_counter


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


for _ in sys.stdin:
    times = []
    for _ in range(5):
        start = perf_counter()
        fib(int(sys.argv[1]))
        times.append((perf_counter() - start) * 1e9)
    print(sorted(times)[2], flush=True)
