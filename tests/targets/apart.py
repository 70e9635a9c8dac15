"""Its child is the first process of a pid namespace of its own: apart.py; both call counted() a hundred times."""
import ctypes
import os

from ready import done, ready

CLONE_NEWPID = 0x20000000


def counted(number):
    return number


def work():
    for i in range(100):
        counted(i)


def main():
    ready()
    work()
    assert not ctypes.CDLL(None).unshare(CLONE_NEWPID)
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    os.waitpid(child, 0)
    work()
    done(calls={"counted": 300})


if __name__ == "__main__":
    main()
