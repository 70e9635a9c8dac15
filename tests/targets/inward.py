"""Calls without end, and says for each line on stdin what is in its own process that it did not put there."""
import json
import os
import select
import sys
import threading
import time

from ready import line_on_stdin, ready

CALLS = 1000


def step():
    pass


def burst():
    for _ in range(CALLS):
        step()


def spin():
    total = 0
    for number in range(2 * CALLS):
        total += number ^ 5


def slowness():
    """What calls take in terms of what other work does: of many, the least of each, as the machine has its moods."""
    clock, least = time.perf_counter_ns, {burst: float("inf"), spin: float("inf")}
    for _ in range(300):
        for work in least:
            start = clock()
            work()
            least[work] = min(least[work], clock() - start)
    return least[burst] / least[spin]


def hooks():
    if hasattr(sys, "monitoring"):
        return [name for name in map(sys.monitoring.get_tool, range(6)) if name]
    return [repr(hook) for hook in (sys.getprofile(), sys.gettrace(), threading._profile_hook) if hook]


def lines(name):
    with open("/proc/self/" + name) as file:
        return file.read().splitlines()


def look():
    names = []
    for task in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/comm" % task) as file:
            names.append(file.read().strip())
    return {
        "slowness": slowness(),
        "hooks": hooks(),
        "threads": len(names),
        "agents": names.count("pytrace-agent"),
        "arenas": sum(".arena" in line for line in lines("maps")),
        "files": len(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    ready()
    while True:
        burst()
        if select.select([0], [], [], 0)[0]:
            line_on_stdin()
            print("done " + json.dumps(look()), flush=True)
