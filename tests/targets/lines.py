"""Every kind of line, each a known number of times: loops on one line and on many, comprehensions, generators, exceptions, with, finally, recursion, threads."""

import contextlib
import threading


def one(): return sum(k for k in range(3))


def loops(times):
    total = 0
    for k in range(times):
        if k % 3 == 0:
            continue
        total += k
    else:
        total += 1
    while total > 0: total -= 7
    for k in range(5): total += k
    while True:
        total += 1
        if total > 10:
            break
    return total


def comprehensions():
    squares = [
        k * k
        for k in range(7)
        if k % 2
    ]
    names = {k: v for k, v in zip("abc", range(3))}
    return squares, names, {k for k in range(4)}, [[a + b for a in range(3)] for b in range(2)]


def generator(count):
    try:
        for k in range(count):
            got = yield k
            if got:
                yield got
    finally:
        one()


def delegates():
    yield from generator(3)
    return 1


def generators():
    list(generator(4))
    list(delegates())
    held = generator(3)
    next(held)
    held.send("more")
    held.close()
    thrown = generator(2)
    next(thrown)
    try:
        thrown.throw(ValueError)
    except ValueError:
        pass


def raises(depth):
    if depth:
        raises(depth - 1)
    raise KeyError(depth)


def catches():
    for _ in range(3):
        try:
            raises(2)
        except (IndexError,
                KeyError) as error:
            str(error)
        except ValueError:
            pass
        else:
            one()
        finally:
            one()


@contextlib.contextmanager
def context():
    yield 1


def withs():
    with context() as first, \
            context() as second:
        first + second
    for _ in range(2):
        with context():
            break
    with contextlib.suppress(ValueError):
        raise ValueError


def returns_in_finally():
    for _ in range(2):
        try:
            return 1
        finally:
            one()


def fib(n):
    return n if n < 2 else fib(n - 1) + \
        fib(n - 2)


class Shape:
    sides = 4

    def area(self,
             scale=1):
        return (
            self.sides
            * scale
        )


def nested():
    """Only a docstring before an inner function."""
    def inner(): return [
        k
        for k in range(3)
    ]
    f = lambda: inner()
    return f()


def worker():
    for k in range(20):
        loops(k)


async def awaited(k):
    return k


async def gathers():
    return [await awaited(k) for k in range(3)]


def runs(coroutine):
    try:
        coroutine.send(None)
    except StopIteration:
        pass


one(); one()
loops(20)
comprehensions()
generators()
catches()
withs()
returns_in_finally()
fib(8)
Shape().area(2); Shape().area()
nested()
runs(gathers())
threads = [threading.Thread(target=worker) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert loops(3) and one() == 3, \
    "never said"
