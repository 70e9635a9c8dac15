"""Greenlets that switch in every way; and which greenlet each call belonged to, by the program's own word.

greenlets.py [--count] [--wait]: with --count it counts itself, and says {"greenlet:depth:function": calls}: greenlets are numbered
in the order of their first call after `ready`, depth is that within the greenlet, or within work() of the main one.
"""
import collections
import itertools
import sys
import threading

import greenlet

from ready import done, ready

counts, order = collections.Counter(), itertools.count()


def entered(frame):
    name, depth = frame.f_code.co_name, 0
    while frame.f_back and frame.f_code is not work.__code__ and frame.f_code is not in_thread.__code__:
        frame, depth = frame.f_back, depth + 1
    mine = greenlet.getcurrent()
    if not hasattr(mine, "order"):  # held by nothing else, so that it dies as it would
        mine.order = next(order)
    counts["%d:%d:%s" % (mine.order, depth, name)] += 1


def on_profile(frame, event, argument):
    if event == "call" and frame.f_code.co_filename == __file__ and frame.f_code is not entered.__code__:
        if frame.f_lasti <= 0 or not frame.f_code.co_flags & 0x20 or sys.version_info >= (3, 11) and frame.f_lineno == frame.f_code.co_firstlineno:
            entered(frame)


def on_start(code, offset):
    if code.co_filename == __file__ and code is not entered.__code__ and code is not on_start.__code__:
        entered(sys._getframe(1))


def count():
    if hasattr(sys, "monitoring"):
        sys.monitoring.use_tool_id(2, "count")
        sys.monitoring.register_callback(2, sys.monitoring.events.PY_START, on_start)
        sys.monitoring.set_events(2, sys.monitoring.events.PY_START)
    else:
        threading.setprofile(on_profile)
        sys.setprofile(on_profile)


def leaf(number):
    return number


def deep(levels, function):
    return deep(levels - 1, function) if levels else function()


def away():
    return greenlet.getcurrent().parent.switch()


def worker(rounds):
    for i in range(rounds):
        leaf(i)
        deep(i, away)
    return leaf(rounds)


def numbers(count):
    for i in range(count):
        leaf(i)
        away()  # while a generator runs
        yield i


def generating():
    return sum(numbers(3))


def failing():
    deep(1, away)
    raise ValueError


def catching():
    child = greenlet.greenlet(failing)
    child.switch()
    try:
        child.switch()
    except ValueError:
        leaf(0)


def killed():
    try:
        deep(2, away)
    finally:
        leaf(0)


def forgotten():
    deep(2, away)


def ping(other, rounds):
    for i in range(rounds):
        leaf(i)
        other[0].switch()
    away()


def at_once():
    return leaf(1)


def early():
    deep(3, away)
    leaf(0)
    away()
    return leaf(1)


def in_thread():
    mine = [greenlet.greenlet(worker) for _ in range(2)]
    for each in mine:
        each.switch(2)
    for _ in range(2):
        for each in mine:
            each.switch()


def work(before):
    workers = [greenlet.greenlet(worker) for _ in range(5)]
    for each in workers:
        each.switch(4)
    for each in before:
        each.switch()
    for _ in range(4):
        for each in workers:
            each.switch()
    for each in before:
        each.switch()
    generator = greenlet.greenlet(generating)
    while not generator.dead:
        generator.switch()
    catching()
    thrown = greenlet.greenlet(killed)
    thrown.switch()
    thrown.throw()
    dropped = greenlet.greenlet(forgotten)
    dropped.switch()
    del dropped
    leaf(2)
    one, two = [], []
    one.append(greenlet.greenlet(lambda: ping(two, 3)))
    two.append(greenlet.greenlet(lambda: ping(one, 3)))
    one[0].switch()
    greenlet.greenlet(at_once).switch()


def main():
    before = [greenlet.greenlet(early) for _ in range(2)]
    for each in before:
        each.switch()
    if "--count" in sys.argv:
        count()
    else:
        ready()
    work(before)
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    if "--count" in sys.argv:
        sys.setprofile(None)
        if hasattr(sys, "monitoring"):
            sys.monitoring.set_events(2, 0)
    done(calls=counts)


if __name__ == "__main__":
    main()
