"""What every target says to the test that started it: ready, and then what it did.

`--wait` makes a target wait for a line on stdin before its work, `--hold` after it.
"""
import json
import os
import sys


def line_on_stdin():
    # os.read, not sys.stdin: the text layer would run Python frames of its own.
    while os.read(0, 1) not in (b"\n", b""):
        pass


def ready():
    """Say that the work can begin; truth.py puts the start of its counting here."""
    print("ready", flush=True)
    if "--wait" in sys.argv:
        line_on_stdin()


def done(**facts):
    """Say what was done: calls={name: entries, resumes and throws}, seconds by kind, and so on."""
    print("done " + json.dumps(facts), flush=True)
    if "--hold" in sys.argv:
        line_on_stdin()


def words():
    """The arguments that are not for this module."""
    return [word for word in sys.argv[1:] if word not in ("--wait", "--hold")]


def seconds(default):
    """The first argument as a number of seconds."""
    return float(words()[0]) if words() else default
