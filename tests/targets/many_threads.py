"""Five hundred threads that live for a moment each, ten at a time."""
import threading

from ready import done, ready, words


def step():
    pass


def short_life():
    for _ in range(7):
        step()


if __name__ == "__main__":
    threads = int(words()[0]) if words() else 500
    ready()
    for first in range(0, threads, 10):
        batch = [threading.Thread(target=short_life) for _ in range(first, min(first + 10, threads))]
        for thread in batch:
            thread.start()
        for thread in batch:
            thread.join()
    done(threads=threads, calls={"short_life": threads, "step": 7 * threads})
