"""Calls whose work is done by threads that never run Python: how much of it, each call knows."""
import ctypes

from ready import done, ready, words


def region(pool, seconds):
    return pool.parallel(ctypes.c_double(seconds))


def alone(number):
    return sum(range(number))


def outer(pool):
    alone(1000)
    used = region(pool, 0.05)
    alone(1000)
    return used


if __name__ == "__main__":
    library = ctypes.CDLL(words()[0])
    library.parallel.restype = ctypes.c_double
    library.start(2)
    ready()
    used = [outer(library) for _ in range(10)]
    done(used=used)
