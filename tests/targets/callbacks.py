"""Python called from C: keys, map, properties, operators and finalizers."""
import functools

from ready import done, ready


def key(number):
    return -number


def mapped(number):
    return number + 1


def compare(a, b):
    return a - b


class Thing:
    def __new__(cls, number):
        return super().__new__(cls)

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

    def __hash__(self):
        return self.number

    def __add__(self, other):
        return Thing(self.number + other.number)

    def __getattr__(self, name):
        return name

    @property
    def double(self):
        return 2 * self.number

    def __del__(self):
        pass

    def __repr__(self):
        return "Thing"


class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class Made(metaclass=Meta):
    pass


def rounds():
    sorted([3, 1, 2], key=key)
    sum(map(mapped, range(4)))
    functools.reduce(compare, [1, 2, 3])
    first, second = Thing(1), Thing(2)
    (first + second).double
    first == second, first.missing, repr(first)
    {first: 1}
    max([5, 6], key=key)
    Made()


if __name__ == "__main__":
    ready()
    for _ in range(23):
        rounds()
    done(
        calls={
            "rounds": 23,
            "key": 23 * 5,
            "mapped": 23 * 4,
            "compare": 23 * 2,
            "__new__": 23 * 3,
            "__init__": 23 * 3,
            "__del__": 23 * 3,
            "__eq__": 23,
            "__hash__": 23,
            "__add__": 23,
            "__getattr__": 23,
            "double": 23,
            "__repr__": 23,
            "__call__": 23,
        }
    )
