"""Each thread waits for one thing of the standard library, and a function of its own in the main thread ends that wait."""

import queue
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from ready import done, ready

FUTEX = "202"
jobs, event, semaphore, condition, barrier, future = queue.Queue(), threading.Event(), threading.Semaphore(0), threading.Condition(), threading.Barrier(2), Future()


def consume():
    jobs.get()


def produce():
    jobs.put(1)


def watch():
    event.wait()


def signal():
    event.set()


def acquire():
    semaphore.acquire()


def release():
    semaphore.release()


def listen():
    with condition:
        condition.wait()


def announce():
    with condition:
        condition.notify()


def meet():
    barrier.wait()


def arrive():
    barrier.wait()


def collect():
    future.result()


def answer():
    future.set_result(1)


ready()
for wait, end in ((consume, produce), (watch, signal), (acquire, release), (listen, announce), (meet, arrive), (collect, answer)):
    thread = threading.Thread(target=wait)
    thread.start()
    # Until it is blocked; while this thread sleeps, it cannot be the GIL that it waits for.
    while True:
        time.sleep(0.05)
        if Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0] == FUTEX:
            break
    end()
    thread.join()
done()
