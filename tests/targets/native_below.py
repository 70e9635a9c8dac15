"""Functions whose time is in C: in libz, and in a sort that calls back; and one that computes by itself."""
import sys
import time
import zlib

from ready import done, ready, seconds

DATA = bytes(range(256)) * 2000
ITEMS = list(range(5000))


def compresses():
    zlib.compress(DATA, 6)


def key(item):
    return -item


def sorts():
    sorted(ITEMS, key=key)


def loops():
    total = 0
    for number in ITEMS:
        total ^= number
    return total


def deep(levels):
    if levels:
        deep(levels - 1)
    else:
        sorts()


ready()
end = time.monotonic() + seconds(2)
while time.monotonic() < end:
    compresses()
    sorts()
    for _ in range(5):
        loops()
    deep(300)
done(**{})
sys.exit()
