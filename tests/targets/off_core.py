"""Functions that are off the core for different reasons: asleep for less and for more than a period, at a lock, waiting for the GIL."""
import random
import threading
import time

from ready import done, ready, seconds

lock = threading.Lock()
ended = threading.Event()


def short():
    time.sleep(random.uniform(0.0003, 0.003))


def long():
    time.sleep(random.uniform(0.005, 0.03))


def locked():
    with lock:
        pass


def computing():
    sum(range(random.randrange(200_000, 800_000)))  # up to several times the 5 ms after which others ask for the GIL


def hold():
    while not ended.is_set():
        with lock:
            time.sleep(random.uniform(0.001, 0.012))
        time.sleep(0.0005)


def fight():
    while not ended.is_set():
        sum(range(10_000))


if __name__ == "__main__":
    random.seed(1)
    work = (short, short, long, locked, locked, locked, locked, locked, computing, computing)
    ready()
    others = [threading.Thread(target=each) for each in (hold, fight)]
    for thread in others:
        thread.start()
    end = time.monotonic() + seconds(4)
    while time.monotonic() < end:
        random.choice(work)()
    ended.set()
    for thread in others:
        thread.join()
    done()
