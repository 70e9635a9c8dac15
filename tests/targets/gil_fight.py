"""Threads that all want the GIL: together they compute for one core, so each waits for the others."""
import threading
import time

from ready import done, ready, seconds, words

TIMES = 50


def compute(end):
    clock = time.monotonic
    while clock() < end:
        pass


def fight(start, duration, times):
    for done_by in range(1, times + 1):
        compute(start + duration * done_by / times)


if __name__ == "__main__":
    total = seconds(1.0)
    threads = int(words()[1]) if len(words()) > 1 else 3
    ready()
    fighters = [threading.Thread(target=fight, args=(time.monotonic(), total, TIMES)) for _ in range(threads)]
    for thread in fighters:
        thread.start()
    for thread in fighters:
        thread.join()
    # The GIL is held almost all the time by one of them: (threads - 1) / threads of their wall time is waiting.
    done(wall=total, threads=threads, gil_wait=total * (threads - 1), calls={"fight": threads, "compute": threads * TIMES})
