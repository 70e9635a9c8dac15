"""Functions that are given and return objects of every kind, by a decorator that writes down what it sees: the last line is that as JSON.

A row for each: function, what, name, type, value, shape, status, as schema.OBSERVED has them.
"""

import collections
import enum
import functools
import inspect

from ready import done, ready

ROOM = 160
seen = []


class Colour(enum.IntEnum):
    RED = 1 << 70


class Text(str):
    def __repr__(self):
        raise AssertionError("the program's code ran")

    __str__ = __len__ = __hash__ = __eq__ = __repr__


class Number(float):
    __repr__ = __str__ = __float__ = Text.__repr__


class Hostile:
    __class__ = property(Text.__repr__)
    __len__ = __repr__ = __getattribute__ = Text.__repr__


class Data(bytes):
    __len__ = __repr__ = __iter__ = Text.__repr__


class Many(list):
    __len__ = __repr__ = __iter__ = Text.__repr__


Point = collections.namedtuple("Point", "x y")


class Failure(KeyError):
    def __str__(self):
        raise AssertionError("the program's code ran")


def cut(pieces):
    out = b""
    for piece in pieces:
        if len(out + piece) > ROOM:
            return out, "cut"
        out += piece
    return out, "complete"


def escaped(byte):
    plain = {0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
    return plain.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else "\\x%02x" % byte)


def of_text(text):
    text = str.__str__(text) if type(text) is not str else text
    encoded, status = cut(one.encode("utf-8", "backslashreplace") for one in str.__iter__(text))
    return encoded.decode(), [str.__len__(text)], status


def described(value):
    """value, shape, status"""
    kind = type(value)
    if issubclass(kind, bool) or value is None:
        return str(value), None, "complete"
    if issubclass(kind, int):
        number = int(value)
        digits = (abs(number).bit_length() + 29) // 30
        return (None, [number.bit_length()], "cut") if 4 * digits > ROOM else (int.__repr__(number), None, "complete")
    if issubclass(kind, float):
        return float.__repr__(value), None, "complete"
    if issubclass(kind, str):
        return of_text(value)
    if issubclass(kind, bytes):
        whole = bytes.__getitem__(value, slice(None))
        return "".join(map(escaped, whole[:ROOM])), [len(whole)], "complete" if len(whole) <= ROOM else "cut"
    if issubclass(kind, BaseException):
        return of_text(value.args[0]) if value.args and isinstance(value.args[0], str) else (None, None, "complete")
    for container in (list, tuple, dict, set, frozenset, bytearray):
        if issubclass(kind, container):
            return None, [container.__len__(value)], "complete"
    return None, None, "complete"


def note(function, what, name, value):
    secret = any(word in (name or function.__name__).lower() for word in ("password", "token", "secret"))
    told = (None, None, "redacted") if secret else described(value)
    seen.append([function.__name__, what, name, type(value).__qualname__, *told])


def note_arguments(function, arguments, keywords):
    bound = inspect.signature(function).bind(*arguments, **keywords)
    bound.apply_defaults()
    for name in function.__code__.co_varnames[: len(bound.arguments)]:
        note(function, "argument", name, bound.arguments[name])


def noted(function):
    @functools.wraps(function)
    def called(*arguments, **keywords):
        note_arguments(function, arguments, keywords)
        try:
            result = function(*arguments, **keywords)
        except BaseException as error:
            note(function, "raised", None, error)
            raise
        note(function, "return", None, result)
        return result

    return called


def driven(function):
    """Of a generator or coroutine function: each resume ends in a yield, a return or an exception."""

    @functools.wraps(function)
    def resumed(*arguments, **keywords):
        note_arguments(function, arguments, keywords)
        running, sent = function(*arguments, **keywords), None
        try:
            while True:
                given = running.send(sent)
                note(function, "yield", None, given)
                sent = yield given
        except StopIteration as end:
            note(function, "return", None, end.value)
            return end.value
        except BaseException as error:
            note(function, "raised", None, error)
            raise

    return resumed


@noted
def seen_plain(value):
    return value


@noted
def seen_positional(a, /, b, c=3.5, *, d, e=None):
    return a


@noted
def seen_more(first, *rest, only, **more):
    return rest


@noted
def seen_cells(plain, inner, also=(1, 2), *rest, key_word, **more):
    def uses():
        return inner, key_word, rest, more

    return plain if uses else None


@noted
def seen_assigned(value, other=1):
    value, other = [value], lambda: value
    return other


@noted
def seen_secret(user, password, my_TOKEN=1, *, all_passwords=()):
    return user


@noted
def seen_password(number):
    return "secret"


@noted
def seen_inner(number):
    return seen_plain(number + 1)


@noted
def seen_raising(error):
    raise error


@noted
def seen_through(error):
    seen_raising(error)


@noted
def seen_raised_by_c(read, given):
    return read(given)


@noted
def seen_missing(given):
    return {}[given]


@driven
def seen_counting(count, step=2):
    for number in range(count):
        got = yield number * step
        got = got and str(got)
    return "end"


@driven
def seen_failing(closed_over):
    yield lambda: closed_over
    raise ValueError("of a generator")


@driven
async def seen_async(value):
    return value


class Seen:
    @noted
    def seen_method(self, value):
        return self

    @classmethod
    @noted
    def seen_of_class(cls, value):
        return cls

    @staticmethod
    @noted
    def seen_static(value):
        return value


VALUES = [
    None, True, False, Ellipsis, NotImplemented,
    0, 1, -1, 2**30 - 1, 2**30, -(2**30), 2**60, -(2**63), 2**63, 2**64, -(2**64) - 1, 10**30, -(10**100), 3**755, 2**1199, 2**1200, -(2**1200), 7**4000,
    Colour.RED,
    0.0, -0.0, 1.0, 100.0, 0.1, -1.5, 1e15, 1e16, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308, 5.684341886080802e-14, float("inf"), float("-inf"), float("nan"),
    Number(2.5), 1j,
    "", "plain", "a\0b", "line\nbreak\ttab", "é" * 3, "é" * 79, "é" * 80, "é" * 81, "a" + "é" * 80, "€uro", "\U0001f600" * 41, "\ud800", "a\udfffb", "\ud83d\ude00",
    "x" * 160, "x" * 161, "y" * 100000, "\x80", "\xff", Text("derived"), Text("deriv\u20ac"), "\x00" * 170,
    b"", b"plain", bytes(range(256)), b"\0" * 160, b"'\"\\", Data(b"derived"),
    bytearray(), bytearray(5), [], [1, 2], Many([1]), list(range(100000)), (), (1,), (None,) * 1000, Point(1, 2), {}, {1: 2}, collections.OrderedDict(a=1),
    collections.defaultdict(list), collections.Counter("abc"), set(), {1, 2}, frozenset((1, 2, 3)), dict.fromkeys(range(1000)), set(range(1000)),
    object(), int, Hostile, Hostile(), seen_plain, len, collections, range(3), memoryview(b"x"), slice(1), iter(()), collections.deque([1, 2]),
    KeyError("text"), KeyError(), OSError(2, "No such file"), Failure("f"), ValueError(5), UnicodeError("\ud800"),
]  # fmt: skip


def main():
    for value in VALUES:
        seen_plain(value)
    seen_positional(1, 2, d=4)
    seen_positional("a", b"b", None, d=[], e={})
    seen_more(1, only=2)
    seen_more(1, 2, 3, 4, only=5, six=6, seven=7)
    seen_cells("p", "i", key_word=1)
    seen_cells("p", 2**80, [1], 7, 8, key_word="é", more_=2)
    seen_assigned({1, 2})
    seen_secret("me", "hunter2", "t", all_passwords=("a", "b"))
    seen_password(5)
    seen_inner(41)
    for error in (KeyError("gone"), ValueError(), OSError(13, "denied"), Failure("é"), KeyboardInterrupt("x" * 200), StopAsyncIteration()):
        try:
            seen_through(error)
        except BaseException:
            pass
    for function, *given in ((seen_missing, "gone"), (seen_missing, "é" * 81), (seen_missing, 5), (seen_missing, ()), (seen_raised_by_c, int, "no number"),
                             (seen_raised_by_c, [].index, "x"), (seen_raised_by_c, len, 5), (seen_raised_by_c, next, iter(()))):  # fmt: skip
        try:
            function(*given)
        except Exception:
            pass
    list(seen_counting(0))
    list(seen_counting(3, step=-(10**20)))
    try:
        list(seen_failing(1))
    except ValueError:
        pass
    list(seen_async(b"awaited"))
    me = Seen()
    me.seen_method(me)
    Seen.seen_of_class(1)
    Seen.seen_static(2)


ready()
main()
done(rows=seen)
