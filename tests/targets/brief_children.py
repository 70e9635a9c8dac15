"""Forks children one after the other, each of which computes for a tenth of a second and ends."""
import os
import time

from ready import done, ready


def burn():
    while time.thread_time() < 0.1:
        sum(range(1000))


if __name__ == "__main__":
    ready()
    children = []
    for _ in range(5):
        child = os.fork()
        if not child:
            burn()
            os._exit(0)
        children.append(child)
        os.waitpid(child, 0)
    done(children=children)
