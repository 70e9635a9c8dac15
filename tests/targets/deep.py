"""A deep stack that is blocked at its bottom: every frame of it is open when somebody attaches."""
import os
import sys

from ready import done, line_on_stdin, ready, words


def nest(levels):
    if levels == 0:
        return bottom()
    return nest(levels - 1)


def bottom():
    print("ready", flush=True)
    line_on_stdin()
    return os.getpid()


if __name__ == "__main__":
    levels = int(words()[0]) if words() else 300
    sys.setrecursionlimit(levels + 100)
    if "--wait" not in sys.argv:
        bottom = os.getpid
        ready()
    nest(levels)
    # Open at the start where a test attached while it waited: <module>, nest levels + 1 times, bottom.
    done(levels=levels, open={"<module>": 1, "nest": levels + 1, "bottom": 1})
