"""Forks children that make ten calls and are gone within a millisecond: they execute another program, end, or do so in a child of their own.

`apart`: each is the first process of a pid namespace of its own.
"""
import ctypes
import os

from ready import done, ready, words

CHILDREN, CALLS = 10, 10
CLONE_NEWPID = 0x20000000


def before_exec(n):
    return n and before_exec(n - 1)


def before_end(n):
    return n and before_end(n - 1)


def in_grandchild(n):
    return n and in_grandchild(n - 1)


def child(what):
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        what()
    finally:
        os._exit(1)


def child_apart(what):
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    ctypes.CDLL(None).unshare(CLONE_NEWPID)
    child(what)
    os._exit(0)


def executes():
    before_exec(CALLS - 1)
    os.execv("/bin/true", ["true"])


def ends():
    before_end(CALLS - 1)
    os._exit(0)


def nests():
    child(inner)
    os._exit(0)


def inner():
    in_grandchild(CALLS - 1)
    os.execv("/bin/sleep", ["sleep", "0.001"])


if __name__ == "__main__":
    ready()
    for _ in range(CHILDREN):
        for what in (executes, ends, nests):
            (child_apart if "apart" in words() else child)(what)
    done(calls={name: CHILDREN * CALLS for name in ("before_exec", "before_end", "in_grandchild")})
