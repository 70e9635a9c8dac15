"""Beside other tools that keep something of code objects.

`neighbours.py left`: one that is gone has left a function behind, which CPython calls for each code object that has extra space for tools.
`neighbours.py reused`: code objects die and others begin at their addresses, with calls of each function counted.
"""
import ctypes
import gc
import sys

from ready import done


def left():
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    request = getattr(ctypes.pythonapi, "PyUnstable_Eval_RequestCodeExtraIndex", None) or ctypes.pythonapi._PyEval_RequestCodeExtraIndex
    request.argtypes, request.restype = (free,), ctypes.c_ssize_t
    gone = free(lambda pointer: None)
    request(gone)
    del gone
    gc.collect()
    others = [free(lambda pointer: None) for _ in range(3)]
    del others
    gc.collect()
    for _ in range(2000):
        names = {}
        exec("def g(): pass\ng()", names)
    gc.collect()
    return {}


def reused():
    addresses, names = set(), {}
    reuses = 0
    for number in range(3000):
        exec("def made_{0}(): pass\nfor _ in range({1}): made_{0}()".format(number % 50, number % 3 + 1), names)
        address = id(names["made_%d" % (number % 50)].__code__)
        reuses += address in addresses
        addresses.add(address)
        names.clear()
    counts = {}
    for number in range(3000):
        counts["made_%d" % (number % 50)] = counts.get("made_%d" % (number % 50), 0) + number % 3 + 1
    assert reuses > 100, reuses
    return counts


if __name__ == "__main__":
    done(calls={"left": left, "reused": reused}[sys.argv[1]]())
