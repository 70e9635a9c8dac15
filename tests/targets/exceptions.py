"""Exceptions that unwind several frames: each of them leaves by an exit of its own."""
from ready import done, ready


class Refused(Exception):
    pass


def raises():
    raise Refused


def passes_on():
    raises()


def cleans():
    try:
        passes_on()
    finally:
        noted()


def noted():
    pass


def converts():
    try:
        cleans()
    except Refused as error:
        raise KeyError from error


def catches():
    try:
        converts()
    except KeyError:
        return True


def from_builtin():
    try:
        return [int(word) for word in ("1", "x")]
    except ValueError:
        return None


class Guard:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True


def guarded():
    with Guard():
        passes_on()


if __name__ == "__main__":
    ready()
    for _ in range(17):
        catches()
        from_builtin()
        guarded()
    done(
        calls={
            "catches": 17,
            "converts": 17,
            "cleans": 17,
            "noted": 17,
            "passes_on": 34,
            "raises": 34,
            "guarded": 17,
            "__enter__": 17,
            "__exit__": 17,
            "from_builtin": 17,
        }
    )
