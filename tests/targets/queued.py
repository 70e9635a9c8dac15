"""Three threads wait for one lock: two do before the work begins, the third comes to them."""

import threading
import time
from pathlib import Path

from ready import done, ready

FUTEX = "202"


def start(thread):
    """Until it is blocked for the lock; it cannot be the GIL that it waits for while this thread sleeps."""
    thread.start()
    while True:
        time.sleep(0.02)
        if Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0] == FUTEX:
            return


def want():
    with lock:
        pass


lock = threading.Lock()
threads = [threading.Thread(target=want) for _ in range(3)]
lock.acquire()
start(threads[0])
start(threads[1])
ready()
start(threads[2])
lock.release()
for thread in threads:
    thread.join()
done(waiters=[thread.native_id for thread in threads])
