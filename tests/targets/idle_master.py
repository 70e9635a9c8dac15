"""A master that only waits, and its two workers, which call again and again; one of them is replaced, as a server does."""
import os
import signal
import time

from ready import done, line_on_stdin, ready

WORKERS = 2


def down(levels):
    return levels and down(levels - 1)


def work():
    while True:
        for _ in range(50):
            down(29)
        time.sleep(0.002)


def forked():
    pid = os.fork()
    if not pid:
        work()
    return pid


def main():
    workers = [forked() for _ in range(WORKERS)]
    print("ready", flush=True)
    line_on_stdin()
    os.kill(workers[0], signal.SIGKILL)
    os.waitpid(workers[0], 0)
    workers.append(forked())
    done(workers=workers)
    line_on_stdin()
    for pid in workers[1:]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


main()
