"""Waits for bytes that another thread sends through a pipe after a known time: blocked in read."""
import os
import threading
import time

from ready import done, ready, seconds


def send(end, duration):
    for _ in range(5):
        time.sleep(duration)
        os.write(end, b"x")


def receive(end):
    return os.read(end, 1)


if __name__ == "__main__":
    total = seconds(1.0)
    reading, writing = os.pipe()
    ready()
    started = time.monotonic()
    sender = threading.Thread(target=send, args=(writing, total / 5))
    sender.start()
    for _ in range(5):
        receive(reading)
    waited = time.monotonic() - started
    sender.join()
    done(blocked=waited, calls={"send": 1, "receive": 5})
