"""Two threads or processes on one core that send each other a byte: for each line on stdin, ns of CPU per switch between them.

CPU time, not the clock's: on a core that others use too it says the same.

pingpong.py threads|processes
"""

import os
import sys
import threading
import time

TRIPS = 10000


def echo(source, sink):
    while os.read(source, 1):
        os.write(sink, b"x")


os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
there, to_there = os.pipe()
here, to_here = os.pipe()
clocks = [time.CLOCK_PROCESS_CPUTIME_ID]
if sys.argv[1] == "threads":
    threading.Thread(target=echo, args=(there, to_here), daemon=True).start()
else:
    child = os.fork()
    if not child:
        os.close(to_there)
        echo(there, to_here)
        os._exit(0)
    clocks.append(~child << 3 | 2)  # the CPU clock of another process
for _ in sys.stdin:
    start = sum(map(time.clock_gettime, clocks))
    for _ in range(TRIPS):
        os.write(to_there, b"x")
        os.read(here, 1)
    print((sum(map(time.clock_gettime, clocks)) - start) / TRIPS / 2 * 1e9, flush=True)
