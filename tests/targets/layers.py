"""Calls through a library and back: ours, json's, and ours again below json's generators."""
import json

from ready import done, ready

ROUNDS = 11


class Thing:
    def __init__(self, inner):
        self.inner = inner


def leaf(number):
    return number + 1


def reduce_thing(thing):
    leaf(1)
    return {"inner": thing.inner, "n": leaf(2)}


def encode(levels):
    thing = None
    for _ in range(levels):
        thing = Thing(thing)
    return json.dumps({"a": [thing, 1, 2], "b": thing}, default=reduce_thing, indent=1)


def main():
    for _ in range(ROUNDS):
        encode(5)


if __name__ == "__main__":
    ready()
    main()
    done(calls={"main": 1, "encode": ROUNDS, "reduce_thing": 10 * ROUNDS, "leaf": 20 * ROUNDS})
