"""Threads of which it is known what they do: one computes without the GIL, one sleeps, two fight for the GIL; until a line on stdin."""
import hashlib
import threading
import time

from ready import line_on_stdin

END = threading.Event()
DATA = bytes(8 << 20)


def alone():
    while not END.is_set():
        hashlib.sha256(DATA).digest()


def asleep():
    while not END.wait(3600):
        pass


def fight():
    while not END.is_set():
        pass


if __name__ == "__main__":
    threads = [threading.Thread(target=target, name=name) for target, name in ((alone, "alone"), (asleep, "asleep"), (fight, "first"), (fight, "second"))]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    line_on_stdin()
    END.set()
    for thread in threads:
        thread.join()
    print("done {}", flush=True)
