"""Values of known types as JSON, and back: what does not have the shape of its type raises ValueError."""

import base64
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1  # of an integer
Value = TypeVar("Value")


def encode(value: Any) -> Any:
    """What json.dumps takes: dataclasses by their fields, sequences, dictionaries by text, bytes in base 64, and plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):  # no abstract class: while other threads imported modules, Mapping took a tuple for one of its own (CPython 3.11.2)
        return {key: encode(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [encode(each) for each in value]
    return value


def decode(kind: type[Value], value: Any) -> Value:
    """The value of type `kind` that encode() made `value` of. Integers have 64 bits, texts are valid UTF-8. Raises ValueError."""
    return typing.cast(Value, _decode(kind, value))


def _decode(kind: Any, value: Any) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_one_of(arguments, value)
    if origin is tuple:
        if arguments[-1] is ...:
            return tuple([_decode(arguments[0], each) for each in _of(list, value)])
        return tuple([_decode(each, given) for each, given in zip(arguments, _of(list, value), strict=True)])
    if origin is list:
        return [_decode(arguments[0], each) for each in _of(list, value)]
    if origin in (dict, Mapping):
        return {_text(key): _decode(arguments[1], each) for key, each in _of(dict, value).items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if is_dataclass(kind):
        expected = _fields(typing.cast(Hashable, kind))
        if _of(dict, value).keys() != expected.keys():
            raise ValueError(f"these are not the fields of a {kind}")
        return typing.cast(Any, kind)(**{name: _decode(each, value[name]) for name, each in expected.items()})
    raise TypeError(f"values of {kind} have no shape")


def _decode_one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        try:
            return _decode(kind, value)
        except ValueError:
            pass
    raise ValueError("a value is of no type that it may have")


@cache
def _fields(kind: Hashable) -> dict[str, Any]:
    hints = typing.get_type_hints(typing.cast(Any, kind))
    return {field.name: hints[field.name] for field in fields(typing.cast(Any, kind))}


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a value is no {kind.__name__}")
    return value


def _text(value: Any) -> str:
    _of(str, value).encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
    return str(value)


def _integer(value: Any) -> int:
    if not _SMALLEST <= _of(int, value) <= _LARGEST:
        raise ValueError("an integer has more than 64 bits")
    return int(value)


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    int: _integer,
    str: _text,
    bool: lambda value: _of(bool, value),
    bytes: lambda value: base64.b64decode(_of(str, value), validate=True),
    type(None): lambda value: _of(type(None), value),
}
