"""Two threads whose ids end in the same bits: both nap for a known time."""
import threading
import time

from ready import done, ready

BITS = 4096  # PLACES of probes/off_cpu.h


def nap(end):
    while time.monotonic() < end:
        time.sleep(0.002)


def pair():
    """Ids are given out one after the other, so that one thread in so many has a wanted one."""
    go, chosen = threading.Event(), []

    def wait():
        me = threading.get_native_id()
        if not chosen or (me - chosen[0].native_id) % BITS == 0:
            chosen.append(threading.current_thread())
            seen.set()
            go.wait()
            nap(time.monotonic() + 1.0)
        seen.set()

    while len(chosen) < 2:
        seen = threading.Event()
        threading.Thread(target=wait).start()
        seen.wait()
    return go, chosen


if __name__ == "__main__":
    go, chosen = pair()
    ready()
    go.set()
    for thread in chosen:
        thread.join()
    done(ids=[thread.native_id for thread in chosen], wall=1.0)
