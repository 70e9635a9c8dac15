"""Run in the interpreter that is measured, so plain enough for every Python 3: ns of CPU time per call of fib(N), when asked.

fib_child.py [N=16]: for each line on stdin, nine runs and the least of them: what others want of the core, and take from its caches, only adds.
"""

import sys
from time import thread_time

ROUNDS = 9


def fib(n: int) -> int:
    """The n-th Fibonacci number, slowly."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


n = int(sys.argv[1]) if len(sys.argv) > 1 else 16
calls = 2 * fib(n + 1) - 1
for _ in sys.stdin:
    times = []
    for _ in range(ROUNDS):
        start = thread_time()
        fib(n)
        times.append((thread_time() - start) / calls * 1e9)
    sys.stdout.write(str(min(times)) + "\n")
    sys.stdout.flush()
