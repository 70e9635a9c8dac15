"""A trace function that raises where a function is about to return: what it would have returned is garbage by then."""
import sys

from ready import done, ready


class Stop(Exception):
    pass


def seen_stopped(number):
    made = [number] * 3
    return made


def tracing(frame, event, argument):
    if frame.f_code is seen_stopped.__code__:
        if event == "line" and frame.f_lineno == seen_stopped.__code__.co_firstlineno + 2:
            raise Stop("here")
        return tracing


ready()
for number in range(50):
    sys.settrace(tracing)
    try:
        seen_stopped(number)
    except Stop:
        pass
    sys.settrace(None)
    seen_stopped(number)
done()
