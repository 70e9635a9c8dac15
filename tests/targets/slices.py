"""Looks for what comes through a pipe for 100 ms at a time, as a database's driver does; a thread of its own writes to it after a second."""
import os
import select
import threading
import time

from ready import done, ready


def wait(poller):
    looks = 0
    while not poller.poll(100):
        looks += 1
    return looks


def answer(writer):
    time.sleep(1)
    os.write(writer, b"x")


if __name__ == "__main__":
    reader, writer = os.pipe()
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    ready()
    thread = threading.Thread(target=answer, args=(writer,))
    thread.start()
    looks = wait(poller)
    thread.join()
    done(looks=looks)
