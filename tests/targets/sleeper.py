"""Sleeps for a known time: blocked."""
import time

from ready import done, ready, seconds


def sleep(duration):
    time.sleep(duration)


if __name__ == "__main__":
    total = seconds(1.0)
    ready()
    for _ in range(10):
        sleep(total / 10)
    done(blocked=total, calls={"sleep": 10})
