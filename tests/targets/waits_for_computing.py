"""The main thread waits for a lock of the file system which another thread gives up after it has computed for a while, with no call, and then made some."""

import fcntl
import json
import sys
import tempfile
import threading
import time


def leaf():
    pass


def compute(held):
    while time.thread_time() < 3:
        pass
    for _ in range(100):
        leaf()
    fcntl.flock(held, fcntl.LOCK_UN)


print("ready", flush=True)
if "--wait" in sys.argv:
    sys.stdin.readline()
with tempfile.NamedTemporaryFile() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    thread = threading.Thread(target=compute, args=(file,))
    thread.start()
    with open(file.name) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
    thread.join()
print("done", json.dumps({"leaf": 100}), flush=True)
