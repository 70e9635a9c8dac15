"""Children of three kinds: forked, a new Python, and a multiprocessing worker."""
import multiprocessing
import os
import subprocess
import sys
import time

from ready import done, ready, words


def step():
    pass


def parent_work():
    for _ in range(31):
        step()


def child_work(rounds):
    time.sleep(0.6)  # a child is probed a moment after it was born, also where many have much to do
    for _ in range(rounds):
        step()


def forked(rounds):
    pid = os.fork()
    if pid == 0:
        child_work(rounds)
        os._exit(0)
    return pid


def main():
    if words() == ["child"]:
        child_work(41)
        return
    fork = multiprocessing.get_context("fork")
    ready()
    parent_work()
    pids = [forked(37) for _ in range(3)]
    for pid in pids:
        os.waitpid(pid, 0)
    python = subprocess.Popen([sys.executable, os.path.abspath(__file__), "child"], stdin=subprocess.DEVNULL)
    python.wait()
    worker = fork.Process(target=child_work, args=(43,))
    worker.start()
    worker.join()
    # Calls by process id; `step` of each, and child_work once.
    steps = {pid: 37 for pid in pids}
    steps.update({os.getpid(): 31, python.pid: 41, worker.pid: 43})
    done(steps=steps, forked=pids, executed=python.pid, worker=worker.pid, exit_codes=[python.returncode, worker.exitcode])


if __name__ == "__main__":
    main()
