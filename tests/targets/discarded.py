"""Code that is compiled, called and discarded again and again, most of it where other code lay before; it calls from another line each time."""
from ready import done, ready

COUNT = 150
addresses = set()


def inner():
    pass


def compiled(source, file):
    names = {"inner": inner}
    code = compile(source, file, "exec")
    addresses.add(id(code))
    exec(code, names)
    return names


def functions(file):
    for number in range(COUNT):
        calls = compiled("def calls():\n" + "\n" * number + "    inner()", file)["calls"]
        addresses.add(id(calls.__code__))
        calls()
        calls()


def modules(file):
    for number in range(COUNT):
        compiled("\n" * number + "inner()", file)


if __name__ == "__main__":
    ready()
    for file in ("<made>", "/tmp/made.py"):
        functions(file)
        modules(file)
    done(count=COUNT, addresses=len(addresses))
