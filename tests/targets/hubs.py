"""Greenlets of a library with a loop of its own: hubs.py gevent|eventlet [--wait]: workers that sleep, by their own count."""
import importlib
import sys
import time

from ready import done, ready, words

WORKERS, ROUNDS, PAUSE_S = 6, 3, 0.02

library = importlib.import_module(words()[0])
away = {}


def leaf(number):
    return number


def worker(number):
    for i in range(ROUNDS):
        leaf(i)
        begin = time.perf_counter()
        library.sleep(PAUSE_S)
        away[number] = away.get(number, 0.0) + time.perf_counter() - begin
    return number


def hog():
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:
        pass
    library.sleep(0)


def main():
    ready()
    begun = [library.spawn(worker, number) for number in range(WORKERS)]
    if library.__name__ == "gevent":
        library.joinall(begun)
        library.spawn(hog).join()
    else:
        for each in begun:
            each.wait()
        library.spawn(hog).wait()
    done(away=sum(away.values()))


if __name__ == "__main__":
    main()
