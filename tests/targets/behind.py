"""A thread that sleeps again and again, many that were begun later and wait, and the main one, which has the GIL meanwhile."""
import threading
import time

from ready import done, ready, words

NAPS = 100


def naps():
    for _ in range(NAPS):
        time.sleep(0.005)


def wait(gate):
    gate.wait()


if __name__ == "__main__":
    threading.stack_size(128 << 10)
    opened, begun = threading.Event(), threading.Event()
    oldest = threading.Thread(target=lambda: (begun.wait(), naps()))
    oldest.start()
    waiting = [threading.Thread(target=wait, args=(opened,)) for _ in range(int(words()[0]))]
    for thread in waiting:
        thread.start()
    ready()
    begun.set()
    while oldest.is_alive():
        sum(range(1000))
    opened.set()
    for thread in waiting:
        thread.join()
    done(naps=NAPS, sleeper=oldest.native_id)
