"""One thread has the GIL while another wants it: held by computing, held while blocked, and held by nobody."""
import ctypes
import os
import sys
import threading
import time

from ready import done, ready, seconds, words

usleep = ctypes.PyDLL(None).usleep  # a PyDLL keeps the GIL


def hold(end):
    clock = time.monotonic
    while clock() < end:
        pass


def block(end):
    while time.monotonic() < end:
        usleep(30000)


def rest(end):
    while time.monotonic() < end:
        time.sleep(0.03)


def want(end):
    while time.monotonic() < end:
        time.sleep(0.003)


def phase(kind, length):
    """Run `kind` in a thread and `want` in another, but for rest; returns their ids."""
    end = time.monotonic() + length
    threads = [threading.Thread(target=work, args=(end,)) for work in ([kind] if kind is rest else [kind, want])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [thread.native_id for thread in threads]


if __name__ == "__main__":
    length = seconds(0.6)
    ready()
    child = words()[1] if len(words()) > 1 else ""
    if child and os.fork():
        os.wait()  # and the child says what it did
        sys.exit()
    if child == "exec":
        os.execv(sys.executable, [sys.executable, __file__, str(length)])
    holder, waiter = phase(hold, length)
    blocker, kept_out = phase(block, length)
    (rester,) = phase(rest, length)
    done(hold=holder, want=waiter, block=blocker, kept_out=kept_out, rest=rester, pid=os.getpid())
