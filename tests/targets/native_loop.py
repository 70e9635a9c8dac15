"""Calls operators until a file is there: native_loop.py --wait FOLDER FILE here|child|exec, itself, a child of its, or its next life."""
import ctypes
import os
import sys
import time

from ready import done, ready, words

FOLDER, FILE, WHERE = words()[:3]


def load():
    ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(os.path.join(FOLDER, "libtorch_cpu.so"))


def work(torch):
    rounds = 0
    while not os.path.exists(FILE):
        torch.forward(rounds)
        rounds += 1
        time.sleep(0.001)
    return rounds


if __name__ == "__main__":
    torch = load()
    torch.forward(0)
    ready()
    for _ in range(10):
        torch.forward(1)
    if WHERE == "exec":
        os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), FOLDER, FILE, "here"])
    if WHERE == "child":
        child = os.fork()
        if not child:
            work(torch)
            os._exit(7)
        done(status=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), child=child)
    else:
        done(rounds=work(torch))
