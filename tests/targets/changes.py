"""Requests of four threads that take a lock and then pay; `pay` of another speed, or no lock, as is asked: what a change makes of it."""
import argparse
import queue
import threading
import time

from ready import done, ready

JOBS = queue.Queue()
LOCK = threading.Lock()


def compute(times):
    for _ in range(int(times)):
        pass


def write():
    compute(5_000)
    time.sleep(0.004)


def pay(speed):
    compute(20_000 / speed)
    time.sleep(0.012 / speed)


def request(speed, locked):
    if locked:
        with LOCK:
            write()
    else:
        write()
    pay(speed)


def worker(speed, locked):
    while JOBS.get():
        request(speed, locked)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--speed", type=float, default=1)
    parser.add_argument("--locked", type=int, default=1)
    args, _ = parser.parse_known_args()
    ready()
    for job in [1] * 120 + [0] * 4:
        JOBS.put(job)
    threads = [threading.Thread(target=worker, args=(args.speed, args.locked)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done()
