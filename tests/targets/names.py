"""Functions by every way that gives them a name: scopes, changed names, generated code, long ones."""
import dataclasses
import functools
import sys
import types
from collections import namedtuple

from ready import done, ready


class Outer:
    ran = [each for each in range(2)]

    def meth(self):
        def local():
            return (lambda: 1)()

        return local()

    @property
    def prop(self):
        return 1

    @staticmethod
    def static():
        return sum(x for x in range(2))

    class Inner:
        def __private(self):
            return {x: x for x in range(2)}, {x for x in range(2)}

        def meth(self):
            return self.__private()

    two = lambda self: 1; three = lambda self: (lambda: 2)()  # noqa: E702, E731


def plain():
    pass


def größe():
    return (lambda: 1)()


class Größe:
    def maß(self):
        return [x for x in range(2)]


def renamed():
    pass


def requalified():
    pass


def renamed_code():
    pass


def renamed_whole():
    pass


def deep_class():
    class Local:
        class Below:
            def meth(self):
                global made_global

                def made_global():
                    pass

                made_global()

    Local.Below().meth()


@functools.wraps(plain)
def wrapper():
    return plain()


renamed.__name__ = "another"
renamed.__qualname__ = "Another.another"
Outer.meth.__qualname__ = "Elsewhere.meth"


def changed(function, **changes):
    if not hasattr(function.__code__, "co_qualname"):
        changes.pop("co_qualname", None)
    return types.FunctionType(function.__code__.replace(**changes), globals())


requalified_too = changed(requalified, co_qualname="Quite.different")
renamed_code_too = changed(renamed_code, co_name="another_name")
renamed_whole_too = changed(renamed_whole, co_name="whole", co_qualname="The.whole")
moved = changed(plain, co_filename="<moved>", co_firstlineno=4096)
beside = changed(renamed, co_qualname="Beside.renamed")

TEMPLATE = "; ".join("f%d = lambda: %d" % (i, i) for i in range(20)) + "\n"
CLASSES = "class A:\n def meth(self): return [x for x in self.other()]\n def other(self): return (x for x in 'ab')\n class B:\n  def meth(self): pass\n"


@dataclasses.dataclass(order=True)
class Point:
    x: int = 0


Pair = namedtuple("Pair", "a b")
LONG = "l" * 300
kept = []  # names whose end a probe cannot read are read from the code objects
SCOPES = """
def generic[T: (int, str)](a: T) -> T: return a
class Generic[T]:
    def meth[S](self, a: S) -> S: return a
type Alias[T] = list[T]
def use():
    generic(1); Generic().meth(2); generic.__type_params__[0].__constraints__; Alias.__value__
"""


def run():
    Outer().meth(), Outer().prop, Outer.static(), Outer.Inner().meth(), Outer().two(), Outer().three()
    plain(), requalified_too(), renamed_code_too(), renamed_whole_too(), moved(), beside(), wrapper(), deep_class()
    names = {}
    exec(TEMPLATE, names)
    for i in range(20):
        names["f%d" % i]()
    for file in ("<string>", "template.html", "memory:0x7f00", "<ümlaut>"):
        names = {}
        exec(compile(CLASSES, file, "exec"), names)
        names["A"]().meth(), names["A"].B().meth()
    Point(1) < Point(2), repr(Point(3)), Pair(1, 2), Pair._make((1, 2))
    kept.append(compile("def %s(): pass\n%s()\nclass K%s:\n def m(self): pass\nK%s().m()" % ((LONG,) * 4), "<string>", "exec"))
    exec(kept[-1], {})
    größe(), Größe().maß()
    eval("(lambda: [x for x in (lambda: 'a')()])()")
    if sys.version_info >= (3, 12):
        scopes = {}
        exec(SCOPES, scopes)
        scopes["use"]()


if __name__ == "__main__":
    ready()
    run()
    done()
