"""A service whose worker waits for two locks: `log_line` for the one that `flush` holds long, `lookup` for `refresh`'s, which is short."""

import queue
import threading
import time

from ready import done, ready

log_lock, cache_lock = threading.Lock(), threading.Lock()
jobs = queue.Queue()
stop = threading.Event()


def flush():
    with log_lock:
        time.sleep(0.02)


def log_line():
    with log_lock:
        pass


def refresh():
    with cache_lock:
        time.sleep(0.004)


def lookup():
    with cache_lock:
        pass


def worker():
    while jobs.get():
        lookup()
        log_line()


def again_and_again(hold, pause):
    while not stop.is_set():
        hold()
        time.sleep(pause)


threads = [threading.Thread(target=worker)]
threads.append(threading.Thread(target=again_and_again, args=(flush, 0.004)))
threads.append(threading.Thread(target=again_and_again, args=(refresh, 0.02)))
ready()
for thread in threads:
    thread.start()
for _ in range(150):
    jobs.put(True)
    time.sleep(0.008)
jobs.put(False)
stop.set()
for thread in threads:
    thread.join()
done()
