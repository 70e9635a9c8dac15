"""Rounds of work that use memory in different ways: for each line on stdin the nanoseconds of CPU time that one took."""

import json
import sys
import time

import orders


def fib(n: int) -> int:
    """Calls, and no memory that is not there already."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def answer(times: int) -> None:
    """What a web service does: small objects that come and go."""
    order = json.dumps(orders.ITEMS).encode()
    for _ in range(times):
        orders.answer(order)


def fill(times: int) -> None:
    """Blocks that the C library takes from the kernel and gives back, page by page."""
    for _ in range(times):
        bytearray(b"x") * (40 << 20)


WORK = {"fib": lambda: fib(24), "orders": lambda: answer(20), "blocks": lambda: fill(3)}

for _ in sys.stdin:
    began = time.process_time_ns()
    WORK[sys.argv[1]]()
    print(time.process_time_ns() - began, flush=True)
