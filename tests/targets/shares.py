"""Functions, lines and threads whose time on a core is known: each measures its own; and one that only sleeps.

shares.py [SECONDS [DEPTH]] [--alone]: how deep the deepest stack is, and without the other thread.
"""
import hashlib
import random
import sys
import threading
import time

from ready import done, ready, seconds, words

CLOCK = time.thread_time_ns
SPENT, WALL = {}, {}
DEEP = int(words()[1]) if words()[1:2] and words()[1].isdigit() else 1000


def spend(name, began):
    now = CLOCK()
    SPENT[name] = SPENT.get(name, 0) + now - began
    return now


def short(n):
    return sum(range(n))


def long(n):
    for _ in range(3):
        sum(range(n))


def lines(n):
    began = CLOCK()
    sum(range(n))
    began = spend("line+0", began)
    sum(range(2 * n))
    began = spend("line+2", began)
    sum(range(4 * n))
    spend("line+4", began)


def steps(n):
    for _ in range(4):
        sum(range(n))
        yield


def generated(n):
    for _ in steps(n):
        pass


def down(levels, n):
    if levels:
        down(levels - 1, n)
    else:
        sum(range(10 * n))


def deep(n):
    down(DEEP - 1, n)


def hashed(n):
    hashlib.sha256(bytes(20 * n)).digest()


def asleep(n):
    time.sleep(n / 1e7)


def worker(end):
    work = (short, long, generated, hashed)
    while time.monotonic() < end:
        each = random.choice(work)
        began = CLOCK()
        each(random.randrange(20_000, 60_000))
        spend("worker:" + each.__name__, began)


if __name__ == "__main__":
    sys.setrecursionlimit(10 * DEEP)
    random.seed(1)
    work = (short, long, generated, deep, hashed, asleep)
    ready()
    end = time.monotonic() + seconds(3)
    thread = threading.Thread(target=worker, args=(end,))
    if "--alone" not in sys.argv:
        thread.start()
    while time.monotonic() < end:
        each = random.choice(work)
        began, wall = CLOCK(), time.monotonic_ns()
        each(random.randrange(20_000, 60_000))
        spend(each.__name__, began)
        WALL[each.__name__] = WALL.get(each.__name__, 0) + time.monotonic_ns() - wall
        lines(random.randrange(10_000, 30_000))
    if thread.ident:
        thread.join()
    done(spent=SPENT, wall=WALL, first_line=lines.__code__.co_firstlineno, worker=getattr(thread, "native_id", 0), deep=DEEP)
