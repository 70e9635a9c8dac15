"""Threads that begin and end, code that is compiled and discarded, stacks that grow: of each function it is known who may call it.

`outer_K` alone calls `inner_K`, which calls the generator `values_K`; `grow` calls itself and `outer_K`.
"""
import random
import threading
import time

from ready import done, ready, seconds

SOURCE = """
def values_{k}(n):
    for i in range(n):
        yield i * i
def inner_{k}(n):
    return sum(values_{k}(n)) + max([i for i in range(n)], key=lambda_{k})
def lambda_{k}(i):
    return -i
def outer_{k}(n):
    return inner_{k}(n)
"""


def compiled(k):
    names = {}
    exec(SOURCE.format(k=k), names)
    return names[f"outer_{k}"]


def grow(levels, outer):
    if levels:
        return grow(levels - 1, outer)
    return outer(random.randrange(1, 5000))


def thread(number, end):
    kept = []
    for i in range(random.randrange(1, 40)):
        kept = [*kept[-20:], compiled(number * 100 + i)]  # some of it stays for a while
        grow(random.randrange(200), random.choice(kept))
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    random.seed(2)
    ready()
    end, number = time.monotonic() + seconds(4), 0
    while time.monotonic() < end:
        threads = [threading.Thread(target=thread, args=(number + i, end)) for i in range(5)]
        number += 5
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    done(threads=number)
