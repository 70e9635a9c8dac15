"""Computes in ten calls of 0.2 s of wall time each."""
import time

from ready import done, ready


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    ready()
    for _ in range(10):
        spin(0.2)
    done(calls={"spin": 10})
