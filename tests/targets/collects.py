"""Garbage collections: asked for by function, begun by the interpreter itself, with a finalizer, and in a thread.

With the word `clears` it empties gc.callbacks, once even while a collection runs.
"""
import gc
import threading

from ready import done, ready, words

ASKED = {0: 3, 1: 5, 2: 7}


def collections():
    return [generation["collections"] for generation in gc.get_stats()]


class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        finalized()


def finalized():
    pass


def ask(generation):
    Cycle()
    gc.collect(generation)


def allocate():
    return [[] for _ in range(5000)]


def measured():
    """How often each generation was collected meanwhile, as the interpreter counts it."""
    gc.disable()
    before = collections()
    for generation, times in ASKED.items():
        for _ in range(times):
            ask(generation)
    gc.enable()
    for _ in range(10):
        allocate()
    gc.disable()
    after = collections()
    return [after[generation] - before[generation] for generation in range(3)]


def in_thread(found):
    found.append(measured())


def clear(phase, information):
    gc.callbacks.clear()


if __name__ == "__main__":
    ready()
    counts = [measured()]
    thread = threading.Thread(target=in_thread, args=(counts,))
    thread.start()
    thread.join()
    if words() == ["clears"]:
        gc.callbacks.append(clear)
        gc.collect()
        allocate()
        gc.collect()
    done(collections=counts, asked=ASKED, callbacks=len(gc.callbacks))
