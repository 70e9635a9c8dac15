"""A request whose critical path is known: a queue, a lock that another thread sleeps with, then a child process that answers through a pipe; beside it a thread that nobody waits for."""
import os
import queue
import subprocess
import sys
import threading
import time

from ready import done, ready

JOBS = queue.Queue()
LOCK = threading.Lock()
HELD, WAITING = threading.Event(), threading.Event()
CHILD = "import sys, time\nfor line in sys.stdin.buffer:\n    time.sleep(0.1)\n    sys.stdout.buffer.write(line)\n    sys.stdout.flush()\n"


def keep():
    with LOCK:
        HELD.set()
        WAITING.wait()
        time.sleep(0.1)


def ask(child):
    child.stdin.write(b"x\n")
    child.stdin.flush()
    return child.stdout.readline()


def serve(child):
    for answer in iter(JOBS.get, None):
        WAITING.set()
        with LOCK:
            ask(child)
        answer.set()


def aside():
    for _ in range(20):
        time.sleep(0.01)


def request():
    answer = threading.Event()
    JOBS.put(answer)
    answer.wait()


if __name__ == "__main__":
    ready()
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ask(child)
    threads = [threading.Thread(target=serve, args=(child,)), threading.Thread(target=aside)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        HELD.clear()
        WAITING.clear()
        holder = threading.Thread(target=keep)
        holder.start()
        HELD.wait()
        request()
        holder.join()
    JOBS.put(None)
    for thread in threads:
        thread.join()
    child.communicate()
    done(pid=os.getpid(), child=child.pid)
