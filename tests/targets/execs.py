"""A program that replaces itself: first by itself in a second life, and with the word sleep then by another program."""
import os
import sys

from ready import done, ready, words


def first_life():
    for _ in range(29):
        step()
    # Never returns: the frames open here are discarded by exec.
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), "second"] + sys.argv[1:])


def second_life():
    for _ in range(47):
        step()


def step():
    pass


if __name__ == "__main__":
    if words()[:1] == ["second"]:
        ready()
        second_life()
        done(pid=os.getpid(), first={"first_life": 1, "step": 29}, second={"second_life": 1, "step": 47})
        if words()[1:] == ["sleep"]:
            os.execv("/bin/sleep", ["sleep", "1"])
    else:
        ready()
        first_life()
