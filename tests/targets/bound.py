"""A stack whose variables are of each kind that can be seen, after "ready"."""

import sys
from enum import IntEnum


class Level(IntEnum):
    HIGH = 7


class Cart:
    pass


def deep(number, negative, large, *more, flag=True, **keywords):
    text, wide, long, raw = "plain", "gr\u00fc\u00dfe \u540d", "x" * 1000, b"a\xff"
    nothing, real, level, cart, error = None, 2.5, Level.HIGH, Cart(), ValueError("wrong")
    rows, pair, table, some = [1, 2, 3], (1, 2), {"a": 1}, {1, 2, 3}
    password = "hunter2"
    inner = 5

    def uses():
        return inner, number

    print("ready", flush=True)
    sys.stdin.readline()
    return uses, text, wide, long, raw, nothing, real, level, cart, error, rows, pair, table, some, password, unbound  # noqa: F821


def outer(api_key):
    deep(3, -(1 << 40), 1 << 2000, 8, 9, flag=False, other=1)


outer("abc")
