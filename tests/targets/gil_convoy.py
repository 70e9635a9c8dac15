"""The GIL in known hands: a hog beside a victim of short pauses, three threads that have it for known times, one that blocks with it."""

import ctypes
import threading
import time

from ready import done, ready, seconds, words

usleep = ctypes.PyDLL(None).usleep  # a PyDLL keeps the GIL
clock = time.monotonic
held = {}


def step():
    for _ in range(500):
        pass


def hog(end):
    while clock() < end:
        step()


def victim(end):
    while clock() < end:
        time.sleep(0.002)


def keep(us):
    """Have the GIL for so long in one call of C, which no other thread can cut short."""
    held[threading.get_ident()] += us / 1e6
    usleep(us)


def share(end, us):
    held[threading.get_ident()] = 0.0
    while clock() < end:
        keep(us)
        time.sleep(0.02)


def large(end):
    share(end, 10000)


def middle(end):
    share(end, 5000)


def small(end):
    share(end, 2000)


def stubborn(end):
    while clock() < end:
        usleep(30000)


def phase(length, *works):
    """Run each in a thread of its own; returns {name: (thread's id, seconds for which it had the GIL at least)}."""
    end = clock() + length
    threads = [threading.Thread(target=work, args=(end,), name=work.__name__) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {thread.name: (thread.native_id, held.pop(thread.ident, None)) for thread in threads}


if __name__ == "__main__":
    length = seconds(1.0)
    ready()
    phases = [(hog, victim), (large, middle, small), (stubborn, victim)]
    chosen = words()[1:]
    done(length=length, phases=[phase(length, *works) for works in phases if not chosen or works[0].__name__ in chosen])
