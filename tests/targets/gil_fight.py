"""Threads that all want the GIL: together they compute for one core, so each waits for the others."""
import threading
import time

from ready import done, ready, seconds, words


def compute(end):
    clock = time.monotonic
    while clock() < end:
        pass


if __name__ == "__main__":
    total = seconds(1.0)
    threads = int(words()[1]) if len(words()) > 1 else 3
    ready()
    end = time.monotonic() + total
    fighters = [threading.Thread(target=compute, args=(end,)) for _ in range(threads)]
    for thread in fighters:
        thread.start()
    for thread in fighters:
        thread.join()
    # The GIL is held almost all the time by one of them: (threads - 1) / threads of their wall time is waiting.
    done(wall=total, threads=threads, gil_wait=total * (threads - 1), calls={"compute": threads})
