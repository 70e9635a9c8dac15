"""Instructions of known forms, each as often; or, with --long, a few that take long."""

import sys

from ready import done, ready


class Box:
    def __add__(self, other):
        return other


def adds(times):
    box = Box()
    for _ in range(times):
        times + 1
        times + 2
        box + times


def long(times):
    large, numbers, many, equal = 7**1800, list(range(1000)), list(range(3000)), list(range(3000))  # little memory: caches are others' too
    found = 0
    for _ in range(times):
        found ^= (large * large) & 1
        found += -1 in numbers
        found += many == equal
    return found


if "--long" in sys.argv:
    ready()
    long(40_000)
else:
    adds(1000)
    ready()
    adds(100_000)
done()
