"""Gives up its core in a known system call at a known point: `give` does nothing but one sched_yield, right after its entry."""
import os
import time

from ready import done, ready, seconds


def give(sched_yield):
    sched_yield()


def other():
    """Something to give the core to, which keeps it for a while."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(5000))
        os.sched_yield()


def main():
    total = seconds(10.0)
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    if os.fork() == 0:
        try:
            other()
        finally:
            os._exit(0)
    ready()
    sched_yield, clock, calls = os.sched_yield, time.monotonic, 0
    end = clock() + total
    while clock() < end:
        for _ in range(20):
            give(sched_yield)
        calls += 20
        time.sleep(0.005)  # no more events than are needed
    done(calls={"give": calls})


if __name__ == "__main__":
    main()
