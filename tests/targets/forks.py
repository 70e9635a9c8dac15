"""Children of three kinds: forked, a new Python, and a multiprocessing worker.

They are there at the second `ready`, and do their work after that: so that a test may see first that each of them is traced.
"""
import multiprocessing
import os
import subprocess
import sys

from ready import done, ready, words


def step():
    pass


def parent_work():
    for _ in range(31):
        step()


def child_work(rounds, gate):
    os.read(gate, 1)
    for _ in range(rounds):
        step()


def forked(rounds, gate, opener):
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        child_work(rounds, gate)
        os._exit(0)
    return pid


def worked(rounds, gate, opener):
    os.close(opener)
    child_work(rounds, gate)


def main():
    if words() == ["child"]:
        child_work(41, 0)
        return
    fork = multiprocessing.get_context("fork")
    ready()
    parent_work()
    gate, opener = os.pipe()
    pids = [forked(37, gate, opener) for _ in range(3)]
    python = subprocess.Popen([sys.executable, os.path.abspath(__file__), "child"], stdin=gate)
    worker = fork.Process(target=worked, args=(43, gate, opener))
    worker.start()
    ready()
    os.close(opener)  # the last one: their reads come to the end
    for pid in pids:
        os.waitpid(pid, 0)
    python.wait()
    worker.join()
    # Calls by process id; `step` of each, and child_work once.
    steps = {pid: 37 for pid in pids}
    steps.update({os.getpid(): 31, python.pid: 41, worker.pid: 43})
    done(steps=steps, forked=pids, executed=python.pid, worker=worker.pid, exit_codes=[python.returncode, worker.exitcode])


if __name__ == "__main__":
    main()
