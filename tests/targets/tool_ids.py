"""Takes ids of sys.monitoring, and says what it got: `tool_ids.py WHICH...`, each with a callback for the calls of a function; `all`: 0 to 5."""
import sys

from ready import done, ready, words

monitoring = sys.monitoring


def step():
    pass


def before():
    step()


def after():
    step()


def counted(number):
    counts[number] = 0

    def on_start(code, offset):
        counts[number] += code is step.__code__

    return on_start


if __name__ == "__main__":
    counts, names, errors = {}, [], []
    take, get = monitoring.use_tool_id, monitoring.get_tool
    ready()
    for _ in range(100):
        before()
    names.append([get(number) for number in range(6)])
    monitoring.free_tool_id(4)
    for number in range(6) if "all" in words() else map(int, words()):
        try:
            take(number, "tool %d" % number)
            monitoring.register_callback(number, monitoring.events.PY_START, counted(number))
            monitoring.set_events(number, monitoring.events.PY_START)
        except Exception as error:
            errors.append(str(error))
        names.append([get(each) for each in range(6)])
        for _ in range(10):
            step()
    for _ in range(100):
        after()
    for number in counts:
        monitoring.set_events(number, 0)
        monitoring.free_tool_id(number)
    names.append([get(number) for number in range(6)])
    done(counts=counts, names=names, errors=errors, calls=200)
