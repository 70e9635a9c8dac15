"""Runs a program as `python PROGRAM` or `python -m MODULE` would, and counts its calls from inside: counter.py RESULT (PROGRAM | -m MODULE) [ARG...]

RESULT is written at the end, as JSON: [[file, name, first line, entries]...], where an entry is a start, a resume of a generator or coroutine, or an
exception thrown into one, on any thread, and the name is the qualified one where code objects have it (3.11 on). RESULT "-": nothing is counted, and the
program runs in the same way. begin() and end() are called around it in either case, so that a tracer knows from when to when it was counted.
"""

import atexit  # noqa: F401 - the agent imports it, and so it is there for the program
import gc
import itertools
import json
import runpy
import sys
import threading
import weakref
from pathlib import Path

counters = {}  # by the code object's address: a weak reference to it, its row and what is called for each entry; a call of C is not interrupted
ended = []  # the same of code that is gone: programs notice what lives longer than it would


def entered(code):
    """Count an entry."""
    found = counters.get(id(code))
    if found is None:
        found = counters.setdefault(id(code), new(code))
    found[2]()


def new(code):
    """The counter of a code object, kept for as long as that lives."""
    key, row = id(code), (code.co_filename, getattr(code, "co_qualname", code.co_name), code.co_firstlineno)
    return weakref.ref(code, lambda _: ended.append(counters.pop(key))), row, itertools.count().__next__


def profile(frame, event, argument):
    """For sys.setprofile, up to 3.11."""
    if event == "call":
        entered(frame.f_code)


def watch():
    """Count what is entered from now on."""
    if not hasattr(sys, "monitoring"):
        threading.setprofile(profile)
        sys.setprofile(profile)
        return
    tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events
    sys.monitoring.use_tool_id(tool, "counter")
    for event in (events.PY_START, events.PY_RESUME, events.PY_THROW):
        sys.monitoring.register_callback(tool, event, lambda code, *what: entered(code))
    sys.monitoring.set_events(tool, events.PY_START | events.PY_RESUME | events.PY_THROW)


def unwatch():
    """Count no more."""
    if hasattr(sys, "monitoring"):
        sys.monitoring.set_events(sys.monitoring.PROFILER_ID, 0)
    else:
        sys.setprofile(None)
        threading.setprofile(None)


def begin():
    """From here on the program runs."""


def end():
    """Up to here."""


def counted():
    """What was."""
    return [(*row, count()) for _, row, count in [*ended, *counters.values()] if row[0] != __file__]


def main():
    """Run it."""
    result, *words = sys.argv[1:]
    is_module = words[0] == "-m"
    sys.argv[:] = words[is_module:]
    sys.path[0] = "" if is_module else sys.argv[0].rpartition("/")[0]
    gc.disable()  # else it collects sooner for what is counted, and what is then finalized makes calls
    if result != "-":
        watch()
    begin()
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        end()
        if result != "-":
            unwatch()
            Path(result).write_text(json.dumps(counted()))


if __name__ == "__main__":
    main()
