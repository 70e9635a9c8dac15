"""Threads of C beside Python's own: one runs no Python, the other calls back."""
import ctypes
import sys
import time

from ready import done, ready, words


def spins(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


if __name__ == "__main__":
    kind = ctypes.CFUNCTYPE(None, ctypes.c_double)
    library = ctypes.CDLL(words()[0])
    library.both.argtypes = [ctypes.c_double, kind]
    ready()
    library.both(float(words()[1]), kind(spins))
    done(**{})
    sys.exit()
