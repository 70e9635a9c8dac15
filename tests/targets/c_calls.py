"""Calls known numbers of functions that are written in C, from functions of its own."""

import math
import re
import time
from operator import itemgetter

ROWS = 500
WORD = re.compile("[a-z]+")


class Stack(list):
    pass


def key(row):
    return -row


def fails(times):
    caught = 0
    for _ in range(times):
        try:
            [].pop()
        except IndexError:
            caught += 1
    return caught


def fails_through(times):
    """An exception passes sorted() on its way from the key function."""
    for _ in range(times):
        try:
            sorted([1], key=divide)
        except ZeroDivisionError:
            pass


def divide(row):
    return row / 0


def produce():
    stack = Stack()
    for i in range(ROWS):
        stack.append(i)
        yield len(stack)


def work():
    total = 0
    for size in produce():
        total += math.hypot(size, 12)
    ordered = sorted(range(ROWS), key=key)
    names = [word for row in range(ROWS) for word in WORD.findall(f"row {row}")]
    first = list(map(itemgetter(0), names))
    time.sleep(0.02)
    return total, ordered[0], first[0], dict.fromkeys("ab"), "".join(*[names[:2]]), fails(7), fails_through(5)


if __name__ == "__main__":
    work()
