"""A program to sample: fib, or processes that wait. For each line on its stdin it does its work for so many seconds and says what it did.

sampled.py fib THREADS    fib in one thread, beside so many that wait
sampled.py idle PROCESSES so many processes that wait; this one does, too
"""

import json
import subprocess
import sys
import threading
import time


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def work(seconds):
    """(rounds, seconds of wall time, seconds of CPU time)."""
    done, wall, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - wall < seconds:
        fib(16)
        done += 1
    return done, time.monotonic() - wall, time.process_time() - cpu


def wait(seconds):
    time.sleep(seconds)
    return 0, seconds, 0.0


kind, others = sys.argv[1], int(sys.argv[2])
if kind == "fib":
    for _ in range(others):
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
else:
    waiting = "print(flush=True)\nimport sys\nsys.stdin.read()"  # until this process ends
    started = [subprocess.Popen([sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(others)]
    for process in started:
        process.stdout.readline()
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps((work if kind == "fib" else wait)(float(line))), flush=True)
