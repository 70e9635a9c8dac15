"""What takes the GIL's place: collections, for which all threads stop, and a list whose own lock one thread has while another wants it."""
import gc
import threading

from ready import done, ready

TIMES = 40


def collect():
    for _ in range(TIMES):
        gc.collect()


def compute(stop):
    number = 0
    while not stop.is_set():
        for _ in range(5000):
            number += 1


def sort(shared, begins):
    begins.set()
    shared.sort()


def append(shared, begins, ends):
    begins.wait()
    while not ends.is_set():
        shared.append(0)


def at_once(first, second, end):
    other = threading.Thread(target=second)
    other.start()
    first()
    end.set()
    other.join()


if __name__ == "__main__":
    ready()
    stop = threading.Event()
    at_once(collect, lambda: compute(stop), stop)
    begins, ends = threading.Event(), threading.Event()
    # Who wants the list's lock offers its core to others 40 times before it waits, a time slice each where others want cores: a sort takes longer than that.
    shared = [number * 611953 % 3000017 for number in range(3000000)]
    at_once(lambda: sort(shared, begins), lambda: append(shared, begins, ends), ends)
    done(calls={"collect": 1, "compute": 1, "sort": 1, "append": 1}, collections=TIMES)
