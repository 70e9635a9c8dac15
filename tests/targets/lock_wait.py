"""One thread holds a lock and sleeps; the other waits for the lock: blocked on a futex that is not the GIL."""
import threading
import time

from ready import done, ready, seconds

lock = threading.Lock()


def hold(duration):
    with lock:
        held.set()
        time.sleep(duration)


def want():
    started = time.monotonic()
    with lock:
        return time.monotonic() - started


if __name__ == "__main__":
    total = seconds(1.0)
    held = threading.Event()
    ready()
    waited = 0.0
    for _ in range(5):
        held.clear()
        holder = threading.Thread(target=hold, args=(total / 5,))
        holder.start()
        held.wait()
        waited += want()
        holder.join()
    done(blocked=waited, calls={"hold": 5, "want": 5})
