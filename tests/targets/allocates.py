"""Allocates known amounts of Python's memory, keeps some of it, and frees the rest where it is known: a reference is tracemalloc."""

import os
import sys
import threading

from ready import done, ready, words

COUNT, SIZE = 1_000, 10_000  # blocks of bytes
SMALL = 100  # bytes, as pymalloc has them


def keep(count, size):
    return [bytes(size) for _ in range(count)]


def drop(count, size):
    blocks = [bytes(size) for _ in range(count)]
    del blocks[:]
    return None


def take_and_drop(count, size):
    kept = keep(count, size)
    peak = len(kept)
    kept.clear()
    return peak


def one_by_one(count, size):
    for _ in range(count):
        bytes(size)


def grow(count):
    """By reallocation."""
    grown = bytearray()
    for _ in range(count):
        grown += b"x" * 1_000
    return grown


def hand_over(blocks, count, size):
    blocks.append([bytes(size) for _ in range(count)])


def of_a_thread():
    handed = []
    thread = threading.Thread(target=hand_over, args=(handed, COUNT, SIZE))
    thread.start()
    thread.join()
    handed.clear()


def everything():
    kept = [keep(COUNT, SIZE), keep(COUNT, SMALL)]
    drop(COUNT, SIZE)
    take_and_drop(COUNT, SIZE)
    one_by_one(COUNT, SIZE)
    kept.append(grow(COUNT))
    of_a_thread()
    return kept


def compared():
    """What tracemalloc says of everything()."""
    import tracemalloc

    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = everything()
    now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"kept": now - before, "lists_compared": len(kept)}


if __name__ == "__main__":
    ready()
    kept = everything()
    if not (child := os.fork()):
        keep(COUNT, SIZE)
        os._exit(0)
    os.waitpid(child, 0)
    done(count=COUNT, size=SIZE, small=SMALL, version=sys.version_info[:2], lists=len(kept), **(compared() if "compared" in words() else {}))
