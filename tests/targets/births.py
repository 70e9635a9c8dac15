"""Starts Pythons one after another, and says how each of them ended."""
import subprocess
import sys

from ready import done, ready

CHILDREN = 16

if __name__ == "__main__":
    ready()
    ends = []
    for _ in range(CHILDREN):
        child = subprocess.Popen([sys.executable, "-S", "-E", "-c", "import time; time.sleep(0.2)"], stderr=subprocess.PIPE)
        complaint = child.communicate()[1]
        ends.append([child.returncode, complaint.decode()])
    done(ends=ends)
