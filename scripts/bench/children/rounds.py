"""Run in the interpreter that is measured: for each line on stdin, ns per call of fib(24), or of len(), under a tracer of its own.

rounds.py plain|viztracer|cprofile [len]
"""

import sys
from time import perf_counter

N = 24
CALLS = 150049


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def lengths():
    for _ in range(CALLS):
        len("")


def plain():
    start = perf_counter()
    lengths() if "len" in sys.argv else fib(N)
    return perf_counter() - start


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


mode = sys.argv[1]
measure = under_viztracer() if mode == "viztracer" else under_cprofile() if mode == "cprofile" else plain
for _ in sys.stdin:
    print(measure() / CALLS * 1e9, flush=True)
