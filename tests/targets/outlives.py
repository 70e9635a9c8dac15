"""Waits for a file, calls functions until no library of another's directory is left, and executes programs: `outlives.py FILE`."""
import os
import subprocess
import time

from ready import done, ready, words


def step():
    pass


if __name__ == "__main__":
    ready()
    while not os.path.exists(words()[0]):
        time.sleep(0.01)
    library = os.environ.get("LD_PRELOAD", "")
    while library and os.path.exists(library):
        step()
        time.sleep(0.001)
    failed = sum(subprocess.call(command) != 0 for command in (["/bin/true"], ["/bin/sh", "-c", "/bin/true; /bin/true"]))
    failed += subprocess.call(["/bin/true"], env=dict(os.environ)) != 0
    done(failed=failed)
