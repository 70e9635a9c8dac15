"""Ends in the way that its first word names; without one it starts itself for each way, and says what a parent sees of it: status and output."""
import ctypes
import json
import os
import signal
import subprocess
import sys

from ready import ready, words


def returns():
    print("to stdout")
    print("to stderr", file=sys.stderr)
    sys.exit(3)


def raises():
    raise ValueError("as it is")


def exits_at_once():
    sys.stdout.write("lost, as it is not flushed")
    os.write(1, b"written\n")
    os._exit(5)


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def terminated_and_says_so():
    def says(number, frame):
        print("caught", number, frame.f_code.co_name)
        sys.exit(4)

    signal.signal(signal.SIGTERM, says)
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


def reads_nothing():
    import faulthandler

    faulthandler.enable()
    ctypes.string_at(0)


def reads_nothing_and_says_nothing():
    ctypes.string_at(0)


def aborts():
    os.abort()


def tells_its_stacks():
    import faulthandler
    import threading

    begun, end = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (begun.set(), end.wait()))
    other.start()
    begun.wait()
    faulthandler.dump_traceback(all_threads=True)
    end.set()
    other.join()


def ends_last():
    import atexit
    import threading

    atexit.register(print, "at exit")
    threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()
    sys.setrecursionlimit(200)

    def deep(n):
        return deep(n + 1)

    try:
        deep(0)
    except RecursionError as error:
        print(error)


ENDINGS = (returns, raises, exits_at_once, terminated, terminated_and_says_so, killed, interrupted, reads_nothing, reads_nothing_and_says_nothing, aborts,
           tells_its_stacks, ends_last)  # fmt: skip

if __name__ == "__main__":
    if words():
        ready()
        globals()[words()[0]]()
    else:
        found = {}
        for ending in ENDINGS:
            process = subprocess.Popen([sys.executable, __file__, ending.__name__], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, err = process.communicate()
            found[ending.__name__] = process.returncode, out.decode(), err.decode()
        print(json.dumps(found))
