"""Counts a target's calls from inside, in a run of its own: truth.py [--from-start] [--sites] TARGET.py [ARG...]

The last line of the output is JSON: {"file:name:first_line": entries}, name being the qualified
name where the version's code objects have one (3.11 on). An entry is a start, a resume of a
generator or coroutine, or an exception thrown into one; so a comprehension counts where it has
a frame (up to 3.11), and a call that the recursion limit refuses does not. (Near that limit no
frame is left for the counting itself: recursion.py counts on its own.) Counted is what enters
after ready() returned, in every thread, as a tracer sees it that attaches while the target waits.

--sites: by where it was called from, {"file:name:first_line:line > file:name:first_line": entries}.
"""
import collections
import json
import os
import sys
import threading

import ready

entries = []  # list.append is atomic; adding up in a dictionary from several threads is not
counting = sites = False


def entered(frame):
    if counting:
        caller = frame.f_back
        entries.append(((key(caller.f_code), caller.f_lineno, key(frame.f_code)) if sites and caller else key(frame.f_code)))


def key(code):
    return "%s:%s:%d" % (code.co_filename, getattr(code, "co_qualname", code.co_name), code.co_firstlineno)


def watch():
    if not hasattr(sys, "monitoring"):

        def profile(frame, event, argument):
            if event == "call":
                entered(frame)

        threading.setprofile(profile)
        sys.setprofile(profile)
        return
    tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events
    sys.monitoring.use_tool_id(tool, "truth")
    for event in (events.PY_START, events.PY_RESUME, events.PY_THROW):
        sys.monitoring.register_callback(tool, event, lambda *what: entered(sys._getframe(1)))
    sys.monitoring.set_events(tool, events.PY_START | events.PY_RESUME | events.PY_THROW)


def start_at_ready(says_ready=ready.ready):
    says_ready()
    start()


def start():
    global counting
    counting = True


def main():
    from_start = sys.argv[1] == "--from-start"
    global sites
    sites = "--sites" in sys.argv[:3]
    options = from_start + sites
    path = os.path.abspath(sys.argv[1 + options])
    sys.argv[:] = [path] + sys.argv[2 + options :]
    ready.ready = ready.ready if from_start else start_at_ready
    with open(path) as source:
        program = compile(source.read(), path, "exec")
    watch()
    if from_start:
        start()
    try:
        exec(program, {"__name__": "__main__", "__file__": path})
    finally:
        global counting
        counting = False
        sys.setprofile(None)
    counts = collections.Counter("%s:%d > %s" % entry if isinstance(entry, tuple) else entry for entry in entries)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
