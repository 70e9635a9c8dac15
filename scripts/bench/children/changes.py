"""Programs that can really be changed, for what_if.py: `changes.py WHAT --speed 2 --locked 0 --processes 1`."""

import argparse
import queue
import subprocess
import sys
import threading
import time

LOCK = threading.Lock()


def compute(times):
    for _ in range(int(times)):
        pass


def write():
    compute(5_000)
    time.sleep(0.003)


def pay(speed):
    compute(20_000 / speed)
    time.sleep(0.006 / speed)


def request(speed, locked):
    if locked:
        with LOCK:
            write()
    else:
        write()
    pay(speed)


def shop(args):
    """Four threads that take jobs of a queue; each takes a lock for some of a request."""
    jobs = queue.Queue()

    def worker():
        while jobs.get():
            request(args.speed, args.locked)

    for job in [1] * 300 + [0] * 4:
        jobs.put(job)
    together(*[worker] * 4)


def pipeline(args):
    """Three stages with short queues between; `pay` is the slowest of them."""
    first, second = queue.Queue(2), queue.Queue(2)

    def take():
        for job in [1] * 150 + [0]:
            time.sleep(0.003)
            first.put(job)

    def middle():
        while first.get():
            pay(args.speed)
            second.put(1)
        second.put(0)

    def last():
        while second.get():
            compute(5_000)

    together(take, middle, last)


def heat(speed):
    compute(400_000 / speed)


def cool():
    compute(400_000)


def fight(args):
    """Two threads, or as many processes, that compute."""

    if args.processes == 1:
        together(*[lambda: burn(args.speed)] * 2)
    else:
        children = [subprocess.Popen([sys.executable, __file__, "alone", "--speed", str(args.speed)]) for _ in range(args.processes)]
        for child in children:
            child.wait()


def alone(args):
    burn(args.speed)


def burn(speed):
    for _ in range(25):
        heat(speed)
        cool()


def together(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(args):
    {"shop": shop, "pipeline": pipeline, "fight": fight, "alone": alone}[args.what](args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("--speed", type=float, default=1)
    parser.add_argument("--locked", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    run(parser.parse_args())
