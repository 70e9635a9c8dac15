"""Calls from every kind of place: what counts is the line of the caller that was running, not where its statement begins."""
import functools
import itertools

from ready import done, ready


def leaf(*values):
    return len(values)


def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(
        n - 2
    )


def even(n):
    return True if n == 0 else odd(n - 1)


def odd(n):
    return False if n == 0 else even(n - 1)


def several_lines():
    return [
        leaf(1),
        leaf(
            2,
            leaf(3),
        ),
    ]


def numbers(n):
    for i in range(n):
        leaf(i)
        yield i


def delegating():
    yield from numbers(3)
    result = yield from numbers(2)
    return result


def by_c():
    sorted([3, 1, 2], key=lambda value: leaf(value))
    list(map(leaf, range(5)))
    functools.reduce(
        lambda a, b: a + leaf(b),
        range(4),
    )
    return max(itertools.starmap(leaf, [(1, 2), (3,)]))


def comprehensions():
    return [leaf(a)
            for a in range(3)
            if leaf(a, a)], {leaf(b) for b in range(2)}, sum(leaf(c) for c in range(4))


class Thing:
    def __init__(self, value):
        self.value = leaf(value)

    def __add__(self, other):
        return Thing(leaf(self.value, other.value))

    def __len__(self):
        return leaf(1)

    @property
    def twice(self):
        return 2 * leaf(self.value)

    def __enter__(self):
        return leaf()

    def __exit__(self, *exception):
        leaf()


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        leaf()
        return function(*arguments)

    return wrapper


@decorated
def plain(value):
    return value


def methods():
    one = Thing(1)
    two = (one +
           Thing(2))
    for _ in range(50):  # until the interpreter has specialized it
        Thing(3)
    with one:
        plain(
            len(two) + one.twice
        )
    return f"{leaf(1)} {leaf(2)}"


def raises():
    raise ValueError


def caught():
    try:
        raises()
    except ValueError:
        leaf()
    finally:
        leaf()


def thrown_into():
    try:
        yield 1
    except KeyError:
        leaf()
        yield 2


def throws():
    generator = thrown_into()
    next(generator)
    generator.throw(KeyError("x"))


NO_FILE = """
def inner(n):
    return leaf(n)

for i in range(3):
    inner(i); inner(-i)
"""


def without_a_file():
    exec(NO_FILE, {"leaf": leaf})
    eval("leaf(1) + leaf(2)")
    for _ in range(20):  # each time new code, often where the last one lay
        eval("leaf(\n leaf(1))")
        exec("\nleaf()", {"leaf": leaf})


# Its calls are more than the agent remembers lines of.
many_lines = {}
exec("def many_lines(n):\n" + "    leaf(n)\n" * 9001, {"leaf": leaf}, many_lines)


if __name__ == "__main__":
    ready()
    fib(9), even(6)
    several_lines()
    list(delegating())
    by_c(); comprehensions()
    methods()
    caught()
    throws()
    without_a_file()
    many_lines["many_lines"](1), many_lines["many_lines"](2)
    leaf(
        leaf(), (lambda: leaf())(),
    )
    done()
