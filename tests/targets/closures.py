"""Namesakes: functions that share a name, a line or both, and must be distinguished."""
import functools

from ready import done, ready


def counted(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args), function(*args)

    return wrapper


@counted
def one():
    return 1


@doubled
def two():
    return 2


@counted
@doubled
def three():
    return 3


class Cat:
    def name(self):
        return "cat"

    class Kitten:
        def name(self):
            return "kitten"


class Dog:
    def name(self):
        return "dog"

    @classmethod
    def made(cls):
        return cls()

    @staticmethod
    def bark():
        pass

    @property
    def tail(self):
        return 1


def adder(n):
    def inner(m):
        return n + m

    return inner


def comprehensions():
    listed = [number for number in range(3)]
    named = {number for number in range(3)}
    mapped = {number: number for number in range(3)}
    return listed, named, mapped, list(number for number in range(3))


def conditional(flag):
    if flag:

        def inner():
            return 1

    else:

        def inner():
            return 2

    return inner()


left, right = (lambda n: n), (lambda n: -n)  # two on one line


if __name__ == "__main__":
    ready()
    for _ in range(19):
        one(), two(), three()
        Cat().name(), Cat.Kitten().name(), Dog.made().name()
        Dog.bark(), Dog.made().tail
        adder(1)(2)
        left(1), right(1), right(2)
        comprehensions()
        conditional(True), conditional(False)
    done(
        calls={
            "counted.<locals>.wrapper": 38,
            "doubled.<locals>.wrapper": 38,
            "one": 19,
            "two": 38,
            "three": 38,
            "Cat.name": 19,
            "Cat.Kitten.name": 19,
            "Dog.name": 19,
            "Dog.made": 38,
            "Dog.bark": 19,
            "Dog.tail": 19,
            "adder": 19,
            "adder.<locals>.inner": 19,
            "<lambda>": 57,
            "conditional": 38,
            "conditional.<locals>.inner": 38,
            "comprehensions": 19,
        }
    )
