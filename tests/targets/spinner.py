"""Computes for a known CPU time, without a call in the loop: on-CPU, and the run queue where cores are short."""
import time

from ready import done, ready, seconds


def spin(duration):
    clock = time.thread_time
    end = clock() + duration
    while clock() < end:
        pass


if __name__ == "__main__":
    total = seconds(1.0)
    ready()
    for _ in range(50):
        spin(total / 50)
    done(on_cpu=total, calls={"spin": 50})
