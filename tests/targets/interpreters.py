"""Interpreters beside the main one, each run by threads of its own: with a GIL of their own and with the main one's, at once, made and destroyed again and again.

`interpreters.py THREADS ROUNDS TIMES [early] [fight] [free]`: each of THREADS threads of the main interpreter makes TIMES interpreters one after the other, with
either GIL by turns, and has each compute in functions whose names end with its id. `early`: the first ones are there, and compute in
a thread, before the work begins. `fight`: two threads of each want its GIL. `free`: at the end no tool of sys.monitoring's is taken in the early ones.
"""
import os
import sys
import threading

from ready import done, ready, words

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

PROGRAM = """
import threading

def leaf_{id}(number):
    return number + 1

def mid_{id}(number):
    return leaf_{id}(leaf_{id}(number))

def numbers_{id}(rounds):
    for number in range(rounds):
        yield mid_{id}(number)

def fails_{id}():
    raise ValueError

def work_{id}(rounds):
    for number in numbers_{id}(rounds):
        pass
    try:
        fails_{id}()
    except ValueError:
        pass

"""
IN_A_THREAD = "beside = threading.Thread(target=work_{id}, args=({rounds},))\nbeside.start()\nwork_{id}({rounds})\nbeside.join()\n"
UNTIL_TOLD = """
import os
def holding_{id}():
    os.write({ready}, b"x")
    while not os.path.exists({until!r}):
        leaf_{id}(1)
    work_{id}({rounds})
holding_{id}()
"""
FIGHT = """
import threading
def fight_{id}():
    n = 0
    for _ in range(1000000):
        n += 1
beside = threading.Thread(target=fight_{id})
beside.start()
fight_{id}()
beside.join()
"""
FREE = """
import sys
left = [tool for tool in range(6) if sys.monitoring.get_tool(tool)]
assert not left, left
"""


def make(own_gil):
    if sys.version_info >= (3, 13):
        return interpreters.create("isolated" if own_gil else "legacy")
    return interpreters.create(isolated=own_gil)


def execute(interpreter, text):
    failed = (getattr(interpreters, "exec", None) or interpreters.run_string)(interpreter, text)
    assert not failed, failed


def calls_of(interpreter, rounds, threads):
    number = int(interpreter)
    return {
        f"leaf_{number}": 2 * rounds * threads, f"mid_{number}": rounds * threads, f"numbers_{number}": (rounds + 1) * threads,
        f"fails_{number}": threads, f"work_{number}": threads,
    }


def one(own_gil, rounds, expected, fights):
    made = make(own_gil)
    names = dict(id=int(made), rounds=rounds)
    execute(made, PROGRAM.format(**names))
    execute(made, IN_A_THREAD.format(**names))
    if fights:
        execute(made, FIGHT.format(**names))
    interpreters.destroy(made)
    expected[int(made)] = calls_of(made, rounds, 2) | ({f"fight_{int(made)}": 2} if fights else {})


def several(first, rounds, times, expected, fights):
    for time in range(times):
        one((first + time) % 2 == 0, rounds, expected, fights)


def hold(interpreter, rounds, told, until):
    execute(interpreter, UNTIL_TOLD.format(id=int(interpreter), rounds=rounds, ready=told, until=until))


def held_ones(rounds, until):
    """Interpreters with either GIL, each with a thread that computes in it until there is a file."""
    held = []
    hear, told = os.pipe()
    for own_gil in (True, False):
        made = make(own_gil)
        execute(made, PROGRAM.format(id=int(made), rounds=rounds))
        thread = threading.Thread(target=hold, args=(made, rounds, told, until))
        thread.start()
        os.read(hear, 1)
        held.append((made, thread))
    return held


if __name__ == "__main__":
    threads, rounds, times = (int(word) for word in words()[:3])
    expected, until = {}, "/tmp/pytrace-until-%d" % os.getpid()
    held = held_ones(rounds, until) if "early" in words() else []
    ready()
    running = [threading.Thread(target=several, args=(thread, rounds, times, expected, "fight" in words())) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if held:
        open(until, "w").close()
    for made, thread in held:
        thread.join()
        expected[int(made)] = calls_of(made, rounds, 1)
        del expected[int(made)][f"leaf_{int(made)}"]  # it was called while the recording began
        if "free" in words():
            execute(made, FREE)
    if held:
        os.unlink(until)
    done(calls=expected)
