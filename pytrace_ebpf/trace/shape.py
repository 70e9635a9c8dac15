"""The shape of JSON as data: what kinds of values stand where, and the first place where they do not."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

_MOST = (1 << 61) - 1


class Whole(NamedTuple):
    """An integer from `least` to `most`."""

    least: int
    most: int


class Number(NamedTuple):
    """A finite number from 0 on."""


class One:
    """One of these texts."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts


class Maybe(NamedTuple):
    """Null, or what `shape` says."""

    shape: "Shape"


class List(NamedTuple):
    """A list of what `shape` says."""

    shape: "Shape"


class Each(NamedTuple):
    """An object all of whose values are what `shape` says."""

    shape: "Shape"


class Fields(NamedTuple):
    """An object with all of `needed`, and of `more` what is there; whatever else it has is not looked at."""

    needed: "Mapping[str, Shape]"
    more: "Mapping[str, Shape]" = MappingProxyType({})


Shape: TypeAlias = "type[str] | type[bool] | Whole | Number | One | Maybe | List | Each | Fields"
WHOLE, MOMENT, PID, NUMBER = Whole(0, _MOST), Whole(0, _MOST), Whole(-1, (1 << 31) - 1), Number()


def fits(value: Any, shape: Shape, at: str = "") -> str | None:
    """None where `value` has this shape; else where it first has not, as in `sources[2].why`."""
    match shape:
        case Maybe():
            return None if value is None else fits(value, shape.shape, at)
        case List() if isinstance(value, list):
            found = (fits(each, shape.shape, f"{at}[{i}]") for i, each in enumerate(value))
        case Each() if isinstance(value, dict):
            found = (fits(each, shape.shape, _below(at, name)) for name, each in value.items())
        case Fields() if isinstance(value, dict):
            here = {name: each for name, each in {**shape.needed, **shape.more}.items() if name in value or name in shape.needed}
            found = (fits(value[name], each, _below(at, name)) if name in value else _below(at, name) for name, each in here.items())
        case Whole():
            return None if type(value) is int and shape.least <= value <= shape.most else at
        case Number():
            return None if type(value) in (int, float) and math.isfinite(value) and 0 <= value <= _MOST else at
        case One():
            return None if isinstance(value, str) and value in shape.texts else at
        case _:
            return None if shape in (str, bool) and isinstance(value, shape) else at
    return next((wrong for wrong in found if wrong is not None), None)


def _below(at: str, name: str) -> str:
    return f"{at}.{name[:40]}" if at else name[:40]
