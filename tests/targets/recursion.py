"""Recursion up to the interpreter's limit; the call that the limit refuses is no call."""
import sys

from ready import done, ready

entered = 0


def down():
    global entered
    entered += 1
    down()


def to_the_limit():
    try:
        down()
    except RecursionError:
        return


def frames():
    frame, count = sys._getframe(), 0
    while frame:
        frame, count = frame.f_back, count + 1
    return count


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


if __name__ == "__main__":
    # Relative to where we are, so that the runner's own frames make no difference.
    sys.setrecursionlimit(frames() + 400)
    ready()
    for _ in range(3):
        to_the_limit()
    sys.setrecursionlimit(5000)
    assert even(300)
    done(calls={"to_the_limit": 3, "down": entered, "even": 151, "odd": 150})
