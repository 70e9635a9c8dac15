"""Forks in each way that Python has, again and again, and says what is not as it should be; `forking.py TIMES [threads]`.

`threads`: beside two threads that compute and import.
"""
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time

from ready import done, ready, words


def step():
    pass


def child():
    for _ in range(10):
        step()


def fork():
    pid = os.fork()
    if not pid:
        child()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def process():
    started = context.Process(target=child)
    started.start()
    started.join()
    return started.exitcode


def run():
    return subprocess.call(["/bin/true"])


def prepared():
    return subprocess.call(["/bin/true"], preexec_fn=step)


def work(stop):
    while not stop:
        for _ in range(1000):
            step()
        for name in ("this_module_is_not_there", "colorsys"):
            sys.modules.pop(name, None)
            try:
                importlib.import_module(name)
            except ImportError:
                pass
        time.sleep(0.001)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    stop = []
    threads = [threading.Thread(target=work, args=(stop,)) for _ in range(2 * ("threads" in words()))]
    for thread in threads:
        thread.start()
    ready()
    failed = 0
    for _ in range(int(words()[0])):
        for way in (fork, process, run, prepared):
            failed += way() != 0
    stop.append(True)
    for thread in threads:
        thread.join()
    done(failed=failed)
