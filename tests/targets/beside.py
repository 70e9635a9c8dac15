"""Threads of the main interpreter that each run one beside it, with a GIL of its own or the main one's: it computes and sleeps in turn, and so does another thread of it.

`beside.py SECONDS`: so long each computes, and the main thread waits for them; when it says "done" they have waited
in their interpreters for longer than the time between two samples off the core (of shorter waits chance draws some), and they do until it may end.
"""
import os
import sys
import threading
import time
from pathlib import Path

from ready import done, ready, seconds

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

READ = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]  # the system call
PROGRAM = """
import os, threading, time
def computes_{name}():
    return sum(range(20000))
def sleeps_{name}():
    time.sleep(0.005)
def turns_{name}(seconds):
    computed = 0
    while computed < seconds * 1e9:
        began = time.thread_time_ns()
        while time.thread_time_ns() - began < 20_000_000:  # four times what one has the GIL for where the other wants it
            computes_{name}()
        computed += time.thread_time_ns() - began
        sleeps_{name}()
def waits_{name}():
    os.read({until}, 1)
rival = threading.Thread(target=turns_{name}, args=({seconds},))
rival.start()
turns_{name}({seconds})
rival.join()
os.write({told}, b"x")
waits_{name}()
"""


def run_beside(own_gil, told, until, seconds):
    if sys.version_info >= (3, 13):
        made = interpreters.create("isolated" if own_gil else "legacy")
    else:
        made = interpreters.create(isolated=own_gil)
    text = PROGRAM.format(name="own" if own_gil else "shared", told=told, until=until, seconds=seconds)
    failed = (getattr(interpreters, "exec", None) or interpreters.run_string)(made, text)
    assert not failed, failed


if __name__ == "__main__":
    ready()
    pipes = {name: (os.pipe(), os.pipe()) for name in ("own", "shared")}
    threads = [
        threading.Thread(target=run_beside, args=(name == "own", told, until, seconds(0.4)))
        for name, ((_, told), (until, _)) in pipes.items()
    ]
    for thread in threads:
        thread.start()
    for (hear, _), _ in pipes.values():
        os.read(hear, 1)
    for thread in threads:
        while Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0] != READ:
            time.sleep(0.001)
    time.sleep(0.1)
    done(tids={name: thread.native_id for name, thread in zip(pipes, threads)})
    for _, (_, end) in pipes.values():
        os.write(end, b"x")
    for thread in threads:
        thread.join()
