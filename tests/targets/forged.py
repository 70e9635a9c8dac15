"""A function that is given objects which no interpreter made: sizes, addresses and types that are none. Nothing of the interpreter's looks at them."""
import ctypes
import gc
import mmap
import os
import sys

from ready import done, ready

WORDS = 128
HUGE = 1 << 60
KERNEL = 0xFFFF888000000000
NOWHERE = 0x5A5A5A5A000
INT, LIST, TUPLE, BYTES, TEXT, DICT, EXCEPTION, HEAP = (1 << bit for bit in (24, 25, 26, 27, 28, 29, 30, 9))
TAGGED = sys.version_info >= (3, 12)
ITEMS = 4 if sys.version_info >= (3, 14) else 3
WIDE = 7 if TAGGED else 9
COMPACT, ASCII = 1 << 5, 1 << 6
kept, given = [], []


def memory(*words):
    made = (ctypes.c_uint64 * WORDS)(*(word % (1 << 64) for word in words))
    kept.append(made)
    return ctypes.addressof(made)


def a_type(name=b"forged", flags=0, base=0, of=id(type)):
    text = ctypes.create_string_buffer(name) if isinstance(name, bytes) else None
    kept.append(text)
    words = [1 << 20, of, 0, ctypes.addressof(text) if text else name, *[0] * 17, flags, *[0] * 10, base]
    return memory(*words)


def seen_forged(thing):
    return thing


def give(name, of, *words):
    at = memory(1 << 20, of, *words)
    given.append(name)
    seen_forged(ctypes.cast(at, ctypes.py_object).value)


def text(state, data, length=5):
    return (length, 0, state, *[0] * (WIDE - 5), data)


def untouched():
    page = mmap.mmap(-1, mmap.PAGESIZE)
    kept.append(page)
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


def main():
    gc.disable()
    for address in (0, 1, 8, NOWHERE, KERNEL, 1 << 47, 1 << 63, (1 << 64) - 1):
        give("unread", address, 5)
    for address in (0, NOWHERE, KERNEL, (1 << 64) - 1):
        for width in (0, 1 << 2, 2 << 2, 3 << 2, 4 << 2, 7 << 2):
            give("unread", id(str), *text(width, address, HUGE))
            give("unread", id(str), *text(width | ASCII, address))
    give("unread", id(str), *text(2 << 2, untouched(), 80))
    give("unread", id(str), *text(4 << 2, NOWHERE, -1))
    for length in (HUGE, -1, 1 << 31, 1 << 63):
        for width in (1, 2, 4):
            give("any", id(str), *text(width << 2 | COMPACT, 0, length))
        give("any", id(bytes), length)
        give("any", id(int), length)
        give("any", a_type(flags=INT), length)
        give("sized" if 0 < length < 1 << 63 else "unread", id(list), length)
        give("any", id(tuple), length)
        give("any", id(dict), length)
        give("any", id(set), 0, length)
        give("any", id(frozenset), 0, length)
        give("any", id(bytearray), length)
        give("any", id(KeyError), 0, memory(1, id(tuple), length))
        give("any", a_type(b"numpy.ndarray"), 0, length, NOWHERE, 0, 0, memory(1, 2, 3))
    give("any", id(KeyError), 0, NOWHERE)
    give("any", id(KeyError), 0, memory(1, id(tuple), 1, *[0] * (ITEMS - 3), NOWHERE))
    give("any", a_type(b"numpy.ndarray"), 0, 3, NOWHERE, 0, 0, NOWHERE)
    give("unread", a_type(b"numpy.ndarray"), 0, 3, KERNEL, 0, 0, memory(1, 2, 3))
    for name in (0, NOWHERE, KERNEL, b"", b"." * 200, b"\xff" * 200, b"a.\xc3"):
        give("any", a_type(name))
        give("any", a_type(name, HEAP))
    around = a_type(b"around")
    ctypes.memmove(around + 256, (ctypes.c_uint64 * 1)(around), 8)
    give("any", around)
    give("any", a_type(flags=(1 << 64) - 1), *[HUGE] * 20)
    give("any", a_type(of=KERNEL))
    give("any", a_type(base=KERNEL))
    give("any", a_type(of=0), HUGE)


ready()
main()
done(given=given)
sys.stdout.flush()
if "--hold" not in sys.argv:
    os._exit(0)  # the interpreter would look at them
