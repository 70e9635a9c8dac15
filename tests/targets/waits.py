"""Waits for one known cause, named by the first argument, all of them inside `wait`; says which thread it waited for."""

import mmap
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

from ready import done, ready, words

TURN = 0.05
TURNS = 6
PAGE = 4096


def wait(one, *args):
    for _ in range(TURNS):
        one(*args)


def meanwhile(act, *args):
    """A thread that does `act` at each turn, and its id."""

    def turns():
        for _ in range(TURNS):
            time.sleep(TURN)
            act(*args)

    thread = threading.Thread(target=turns)
    thread.start()
    return thread.native_id


def sleep():
    wait(time.sleep, TURN)


def pipe():
    reading, writing = os.pipe()
    partner = meanwhile(os.write, writing, b"x")
    wait(os.read, reading, 1)
    return partner


def connection():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


def socket_():
    client, server = connection()
    partner = meanwhile(server.send, b"x")
    wait(client.recv, 1)
    return partner


def poll():
    client, server = connection()
    poller = select.poll()
    poller.register(client, select.POLLIN)
    partner = meanwhile(server.send, b"x")
    wait(lambda: poller.poll() and client.recv(1))
    return partner


def lock():
    """A convoy: whoever has the lock sleeps with it."""
    held = threading.Lock()

    def hold():
        with held:
            time.sleep(TURN / 2)

    # A turn more than this thread has: it never finds the lock free, but when it comes first.
    others = [threading.Thread(target=lambda: [hold() for _ in range(TURNS + 1)]) for _ in range(2)]
    for other in others:
        other.start()

    def want():
        with held:
            pass

    wait(want)
    for other in others:
        other.join()
    return [other.native_id for other in others]


def gil():
    """Two threads compute: each gives up the GIL when the other has waited for long enough."""
    stop = []

    def hold():
        while not stop:
            pass

    def want():
        end = time.monotonic() + TURN
        while time.monotonic() < end:
            pass

    holder = threading.Thread(target=hold)
    holder.start()
    wait(want)
    stop.append(True)
    return holder.native_id


def uncached(size):
    """A file of which nothing is in memory, and nothing will be read ahead."""
    file = tempfile.TemporaryFile(dir="/var/tmp")
    file.write(os.urandom(1 << 20) * (size >> 20))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    return file


def fault():
    file = uncached(32 << 20)
    mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    if hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_RANDOM)
    places = iter(range(0, 32 << 20, 37 * PAGE))
    wait(lambda: [mapping[next(places)] for _ in range(30)])


def disk():
    file = uncached(32 << 20)
    places = iter(range(0, 32 << 20, 37 * PAGE))
    wait(lambda: [os.pread(file.fileno(), 1, next(places)) for _ in range(30)])


def sync():
    file = uncached(1 << 20)

    def one():
        file.seek(0)
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())

    wait(one)


def child():
    sleepers = [
        subprocess.Popen([sys.executable, "-S", "-E", "-c", "import time; time.sleep(%s)" % (TURN * (turn + 4))])
        for turn in range(TURNS)
    ]
    rest = iter(sleepers)
    wait(lambda: next(rest).wait())
    return [sleeper.pid for sleeper in sleepers]


def before_all_others():
    """As far as one may: this process and its children, and where sessions share the cores, this session."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        with open("/proc/self/autogroup", "w") as group:
            group.write("-20")
    except OSError:
        pass


def hog():
    """Another process wants the same core; both so much that nobody else gets it."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    before_all_others()
    other = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    other.stdout.readline()

    def spin():
        end = time.monotonic() + 2 * TURN
        while time.monotonic() < end:
            pass

    try:
        wait(spin)
    finally:
        other.kill()
        other.wait()
    return other.pid


CAUSES = {
    function.__name__.strip("_"): function
    for function in (sleep, pipe, socket_, poll, lock, gil, fault, disk, sync, child, hog)
}


if __name__ == "__main__":
    cause = CAUSES[words()[0] if words() else "sleep"]
    ready()
    done(partner=cause())
