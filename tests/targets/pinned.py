"""Computes on one core, then on another, for seconds each; every move is known."""
import os
import time

from ready import done, ready, seconds


def on_first(until):
    while time.monotonic() < until:
        pass


def on_second(until):
    while time.monotonic() < until:
        pass


if __name__ == "__main__":
    first, second = sorted(os.sched_getaffinity(0))[:2]
    length = seconds(2.5)
    ready()
    for core, work in ((first, on_first), (second, on_second)):
        os.sched_setaffinity(0, {core})
        work(time.monotonic() + length)
    done(cores=[first, second])
