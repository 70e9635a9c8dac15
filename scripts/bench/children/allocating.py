"""Rounds of work that use memory in different ways: for each line on stdin the nanoseconds of CPU time that one took."""

import json
import sys
import time

RATES = {"book": 0.07, "food": 0.07, "tool": 0.19}


def price(item: dict) -> float:
    """Of one item of an order."""
    net = item["count"] * item["price"]
    return round(net * (1 + RATES[item["kind"]]), 2)


def fib(n: int) -> int:
    """Calls, and no memory that is not there already."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def orders(times: int) -> None:
    """What a web service does: small objects that come and go."""
    order = json.dumps([{"name": f"item {i}", "kind": ("book", "food", "tool")[i % 3], "count": i % 40, "price": i + 0.99} for i in range(500)])
    for _ in range(times):
        json.dumps([{**item, "total": price(item)} for item in json.loads(order)])


def fill(times: int) -> None:
    """Blocks that the C library takes from the kernel and gives back, page by page."""
    for _ in range(times):
        bytearray(b"x") * (40 << 20)


WORK = {"fib": lambda: fib(24), "orders": lambda: orders(20), "blocks": lambda: fill(3)}

for _ in sys.stdin:
    began = time.process_time_ns()
    WORK[sys.argv[1]]()
    print(time.process_time_ns() - began, flush=True)
