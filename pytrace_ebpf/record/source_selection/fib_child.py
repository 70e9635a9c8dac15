"""Run in the interpreter that is measured, so plain enough for every Python 3: ns of CPU time per call of fib(N), when asked, or of a turn of a loop without calls.

fib_child.py [N=16]: for each line on stdin, which is "code" for the loop, nine runs and the least of them: what others want of the core, and take from its
caches, only adds.
"""

import sys
from time import thread_time

ROUNDS = 9


def fib(n: int) -> int:
    """The n-th Fibonacci number, slowly."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


class Node:
    """What most code does: attributes and items are looked up, compared and added, and objects made."""

    def __init__(self, key: int) -> None:
        self.key, self.sizes, self.names, self.seen = key, [key, key + 1], {"a": key}, [[key], [key + 1]]


def turns(node: Node, count: int) -> int:
    """A loop without calls."""
    total = 0
    for number in range(count):
        if number < node.key:
            total += node.sizes[0]
        key = node.names["a"]
        if key is not None and node.key >= key:
            total = number + node.sizes[1]
        pair = [number, total, f"{number}"]
        if pair in node.seen:
            total = 0
    return total


node = Node(500)
n = int(sys.argv[1]) if len(sys.argv) > 1 else 16
calls = 2 * fib(n + 1) - 1
for line in sys.stdin:
    times = []
    for _ in range(ROUNDS):
        start = thread_time()
        if line == "code\n":
            turns(node, calls)
        else:
            fib(n)
        times.append((thread_time() - start) / calls * 1e9)
    sys.stdout.write(str(min(times)) + "\n")
    sys.stdout.flush()
