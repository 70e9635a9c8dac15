"""Two threads that read many small blocks beside one that computes: python3 convoy.py [SECONDS]."""

import os
import sys
import threading
import time

stop = threading.Event()


def score(n: int) -> int:
    return sum(i * i % 11 for i in range(n))


def compute() -> None:
    while not stop.is_set():
        score(20_000)


def read_block(descriptor: int) -> int:
    return len(os.pread(descriptor, 512, 0))  # gives the GIL up, and wants it back some microseconds later


def serve() -> None:
    with open(__file__, "rb") as file:
        while not stop.is_set():
            for _ in range(20):
                read_block(file.fileno())


if __name__ == "__main__":
    threads = [threading.Thread(target=what, name=what.__name__) for what in (compute, serve, serve)]
    for thread in threads:
        thread.start()
    time.sleep(float(sys.argv[1] if sys.argv[1:] else 3))
    stop.set()
    for thread in threads:
        thread.join()
