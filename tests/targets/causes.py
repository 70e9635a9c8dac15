"""A small service whose time goes to one planted cause after the other: causes.py --wait SECONDS [CAUSE ...]. Says when each began and ended.

Beside it, all the time, there are threads that have nothing to do: of a pool, at a queue, at a socket that nobody connects to.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time

from ready import done, ready, words

ANSWER_S = 0.02
LOCK = threading.Lock()
POOL, FULL = queue.Queue(), queue.Queue(2)
LOG = logging.getLogger("shop")
LOCAL = threading.local()


def answering():
    """In a process of its own, for as long as this one lives: a server that takes its time; "n" is answered now, "l" later."""
    listener = socket.create_server(("127.0.0.1", 0))
    end, here = os.pipe()
    if os.fork() == 0:
        os.close(here)
        threading.Thread(target=answers, args=(listener,), daemon=True).start()
        os.read(end, 1)
        os._exit(0)
    address = listener.getsockname()
    listener.close()
    os.set_inheritable(here, False)
    return address


def answers(listener):
    while True:
        connection = listener.accept()[0]
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection):
    while said := connection.recv(1):
        time.sleep(ANSWER_S if said == b"l" else ANSWER_S / 20)
        connection.sendall(b"!")


def ask(how=b"l"):
    if not hasattr(LOCAL, "connection"):
        LOCAL.connection = socket.create_connection(PEER)
    LOCAL.connection.sendall(how)
    return LOCAL.connection.recv(1)


def pay():
    ask()


def reserve():
    with LOCK:
        audit()


def audit():
    ask()


def crunch():
    number = 0
    while number < 300_000:
        number += 1


def listing():
    return [ask(b"n") for _ in range(20)]


def retry():
    time.sleep(0.05)


def convert():
    subprocess.run(["sleep", "0.05"], check=True)


def borrow():
    token = POOL.get()
    try:
        ask()
    finally:
        POOL.put(token)


def log():
    LOG.warning("said")


class Remote(logging.Handler):
    def emit(self, record):
        ask()


def produce():
    FULL.put("work")


def consume(end):
    while time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            FULL.get(timeout=0.01)
            time.sleep(0.02)


def again():
    with contextlib.suppress(OSError):
        socket.create_connection(NOBODY)
    time.sleep(0.03)


def save():
    with tempfile.NamedTemporaryFile(dir=".") as file:
        for _ in range(20):
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())


async def suggest():
    await asyncio.sleep(0.001)


async def pause():
    await asyncio.sleep(0.001)
    time.sleep(0.05)


async def served(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.gather(suggest(), suggest(), pause())


def loop(seconds):
    asyncio.run(served(seconds))


def handle(handler, end):
    while time.monotonic() < end:
        handler()


def service(handler, seconds, threads=3):
    end = time.monotonic() + seconds
    started = [threading.Thread(target=handle, args=(handler, end)) for _ in range(threads)]
    if handler is produce:
        started.append(threading.Thread(target=consume, args=(end + 0.3,)))
    for each in started:
        each.start()
    for each in started:
        each.join()


CAUSES = {
    "peer": pay, "lock": reserve, "gil": crunch, "many": listing, "sleep": retry, "child": convert, "pool": borrow, "disk": save, "log": log, "full": produce, "refused": again,
}  # fmt: skip


def worker(work):
    while work.get() is not None:
        pass


def accepts(listener):
    while True:
        listener.accept()


def nothing_to_do():
    pool = concurrent.futures.ThreadPoolExecutor(2)
    pool.submit(int).result()
    pool.submit(int).result()
    threading.Thread(target=worker, args=(queue.Queue(),), daemon=True).start()
    threading.Thread(target=accepts, args=(socket.create_server(("127.0.0.1", 0)),), daemon=True).start()
    return pool


def main():
    seconds, *chosen = words()
    POOL.put("connection")
    pool, phases = nothing_to_do(), {}
    for name in chosen or [*CAUSES, "loop"]:
        began = time.monotonic_ns()
        if name == "loop":
            loop(float(seconds))
        else:
            service(CAUSES[name], float(seconds))
        phases[name] = [began, time.monotonic_ns()]
    done(phases=phases)
    pool.shutdown()
    os._exit(0)


LOG.addHandler(Remote())
with socket.create_server(("127.0.0.1", 0)) as gone:
    NOBODY = gone.getsockname()
PEER = answering()
ready()
main()
