"""Run in the interpreter that is measured: for each line on stdin, ns per call of fib(24), of len(), or ns of CPU per line, under a tracer of its own.

rounds.py plain|viztracer|cprofile|settrace|line_profiler [len|lines]
"""

import sys
from time import perf_counter, process_time

N = 24
CALLS = 150049


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def lengths():
    for _ in range(CALLS):
        len("")


def lines(times=CALLS // 4):
    total = 0
    for k in range(times):
        total += k
        total ^= 3
        total &= 1023
    return total


WORK = {"len": lengths, "lines": lines}.get(sys.argv[-1], lambda: fib(N))


clock = process_time if WORK is lines else perf_counter


def plain():
    start = clock()
    WORK()
    return clock() - start


def under_viztracer():
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0)

    def measure():
        tracer.start()
        seconds = plain()
        tracer.stop()
        tracer.clear()
        return seconds

    return measure


def under_cprofile():
    import cProfile

    def measure():
        profile = cProfile.Profile()
        profile.enable()
        seconds = plain()
        profile.disable()
        return seconds

    return measure


def under_settrace():
    hits = [0]

    def on_event(_frame, event, _argument):
        hits[0] += event == "line"
        return on_event

    def measure():
        sys.settrace(on_event)
        seconds = plain()
        sys.settrace(None)
        return seconds

    return measure


def under_line_profiler():
    from line_profiler import LineProfiler

    profiler = LineProfiler(lines)

    def measure():
        profiler.enable()
        seconds = plain()
        profiler.disable()
        return seconds

    return measure


UNDER = {"viztracer": under_viztracer, "cprofile": under_cprofile, "settrace": under_settrace, "line_profiler": under_line_profiler}
mode = sys.argv[1]
measure = UNDER[mode]() if mode in UNDER else plain
for _ in sys.stdin:
    print(measure() / CALLS * 1e9, flush=True)
