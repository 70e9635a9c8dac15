"""Prepares for a while, then trains: a function that is called once, and another thread goes on all the time."""

import threading
import time

from ready import done, ready, seconds


def prepare():
    time.sleep(0.1)


def train():
    for _ in range(5):
        step()


def step():
    time.sleep(0.05)


def after():
    time.sleep(seconds(0.1))


def beside(stop):
    while not stop.is_set():
        time.sleep(0.01)


def main():
    stop = threading.Event()
    thread = threading.Thread(target=beside, args=(stop,), name="beside")
    thread.start()
    for _ in range(9):
        prepare()
    began = time.monotonic_ns()
    train()
    ended = time.monotonic_ns()
    after()
    stop.set()
    thread.join()
    done(began=began, ended=ended)


ready()
main()
