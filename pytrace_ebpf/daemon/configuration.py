"""The daemon's configuration, one TOML file. What is wrong with it is one sentence that names the key."""

import difflib
import pwd
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pytrace_ebpf import units
from pytrace_ebpf.daemon.api.permission import Permission
from pytrace_ebpf.daemon.destination import KINDS, Destination, destination
from pytrace_ebpf.daemon.policy import ACTIONS, RECORD, SAMPLE, Rule
from pytrace_ebpf.errors import UsageError

_MOST_BYTES = 1 << 20
DEFAULT_FILE = Path("/etc/pytrace-ebpf/daemon.toml")
_LEAST_BYTES, _LEAST_AGE_S = 1 << 20, 60.0
_MOST_HZ, _MOST_PROCESSES, _MOST_PID = 1000.0, 16_000, 1 << 22


@dataclass(frozen=True)
class Configuration:
    """As docs/daemon.md describes the keys."""

    directory: Path = Path("/var/lib/pytrace-ebpf/profile")
    recordings: Path = Path("/var/lib/pytrace-ebpf/recordings")
    run_directory: Path = Path("/run/pytrace-ebpf")
    hz: float = 99.0
    window_s: float = 10.0
    max_bytes: int = 2 << 30
    max_age_s: float = 7 * 86400.0
    max_processes: int = 1000
    max_recordings: int = 4
    otherwise: str = SAMPLE
    requests: Permission = field(default_factory=Permission)
    metrics_port: int = 0
    push: tuple[Destination, ...] = field(default=())
    rules: tuple[Rule, ...] = field(default=())

    def same_place(self, other: "Configuration") -> bool:
        """Whether both are of a daemon with the same lock."""
        return self.run_directory == other.run_directory


class _WrongError(Exception):
    """A value that its key cannot have; says which it can."""


def load(path: Path | None) -> Configuration:
    """That of a file; without one of DEFAULT_FILE where it is there, else all defaults. Raises UsageError."""
    if path is None and not DEFAULT_FILE.exists():
        return Configuration()
    path = path or DEFAULT_FILE
    try:
        with path.open("rb") as file:
            read = file.read(_MOST_BYTES + 1)  # of a device it would have no end
        if len(read) > _MOST_BYTES:
            raise UsageError(f"the configuration {path} is no TOML: it has more than {_MOST_BYTES:,} bytes")
        content = tomllib.loads(read.decode())
    except OSError as error:
        raise UsageError(f"the configuration {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the configuration {path} is no TOML: {_lower(str(error))}") from None
    rules, push = (_tables(content, name, path) for name in ("rule", "push"))
    values = _parsed(content, _KEYS, str(path))
    made = tuple(_rule(rule, f"{path}: rule {number}") for number, rule in enumerate(rules, 1))
    to = tuple(
        destination(_parsed(each, _PUSH_KEYS, where), where) for each, where in ((each, f"{path}: push {at}") for at, each in enumerate(push, 1))
    )
    return Configuration(**values, rules=made, push=to)


def _tables(content: dict[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    found = content.pop(name, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UsageError(f"{path}: {name} is a table of its own: write [[{name}]] above its keys")
    return found


def _rule(content: dict[str, Any], where: str) -> Rule:
    values = _parsed(content, _RULE_KEYS, where)
    if "action" not in values:
        raise UsageError(f"{where}: action is missing: one of {', '.join(ACTIONS)}")
    if values.get("options") and values["action"] != RECORD:
        raise UsageError(f"{where}: options are of action {RECORD!r} alone")
    return Rule(**values)


def _parsed(content: Mapping[str, Any], keys: Mapping[str, tuple[str, Callable[[Any], Any]]], where: str) -> dict[str, Any]:
    out = {}
    for name, value in content.items():
        if name not in keys and name in _KEYS:
            kind = "rule" if keys is _RULE_KEYS else "push"
            raise UsageError(f"{where}: {name} is no key of a {kind}: write it above the first [[{kind}]]")
        if name not in keys:
            near = difflib.get_close_matches(name, keys, 1)
            raise UsageError(f"{where}: {name} is no key" + (f"; did you mean {near[0]}?" if near else f": there are {', '.join(keys)}"))
        to, parse = keys[name]
        try:
            out[to] = parse(value)
        except _WrongError as wrong:
            raise UsageError(f"{where}: {name} is {value!r}, but {wrong}") from None
    return out


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise _WrongError("it must be a path that begins with a slash")
    return Path(value)


def _size(value: Any) -> int:
    bytes_ = value if type(value) is int else units.size(value) if isinstance(value, str) else 0
    if bytes_ < _LEAST_BYTES:
        raise _WrongError("it must be a size of at least 1 MiB, like '500M' or '20GiB'")
    return bytes_


def _age(value: Any) -> float:
    seconds = units.seconds(value) if isinstance(value, str) else None
    if seconds is None or not _LEAST_AGE_S <= seconds <= 3650 * 86400:
        raise _WrongError("it must be a time of at least a minute, like '12h' or '7d'")
    return seconds


def _number(least: float, most: float, kind: type = int) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) not in (int, kind) or not least <= value <= most:
            raise _WrongError(f"it must be a number from {least:g} to {most:g}")
        return kind(value)

    return parse


def _window(value: Any) -> float:
    seconds = units.seconds(value) if isinstance(value, str) else None
    if seconds is None or not 1 <= seconds <= 600:
        raise _WrongError("it must be a time from 1s to 10m")
    return seconds


def _timeout(value: Any) -> float:
    seconds = units.seconds(value) if isinstance(value, str) else None
    if seconds is None or not 0.1 <= seconds <= 60:
        raise _WrongError("it must be a time from 100ms to 60s")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _WrongError("it must be a text")
    return value


def _kind(value: Any) -> str:
    if value not in KINDS:
        raise _WrongError(f"it must be one of {', '.join(KINDS)}")
    return str(value)


def _action(value: Any) -> str:
    if value not in ACTIONS:
        raise _WrongError(f"it must be one of {', '.join(ACTIONS)}")
    return str(value)


def _otherwise(value: Any) -> str:
    if value not in ACTIONS or value == RECORD:
        raise _WrongError("it must be sample or ignore")
    return str(value)


def _requests(value: Any) -> Permission:
    if not isinstance(value, dict):
        raise _WrongError("it must be a table: [requests], and its keys below")
    return Permission.of(value)


def _patterns(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) and each for each in values):
        raise _WrongError("it must be a text, or a list of texts")
    return tuple(values)


def _users(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(each) is int or isinstance(each, str) for each in values):
        raise _WrongError("it must be the name or the number of a user, or a list of those")
    return tuple(each if type(each) is int else _user(each) for each in values)


def _user(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise _WrongError(f"there is no user {name!r}") from None


def _pids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(each) is int and 0 < each <= _MOST_PID for each in values):
        raise _WrongError("it must be the number of a process, or a list of those")
    return tuple(values)


_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "directory": ("directory", _path),
    "recordings": ("recordings", _path),
    "run_directory": ("run_directory", _path),
    "hz": ("hz", _number(1, _MOST_HZ, float)),
    "window": ("window_s", _window),
    "max_bytes": ("max_bytes", _size),
    "max_age": ("max_age_s", _age),
    "max_processes": ("max_processes", _number(1, _MOST_PROCESSES)),
    "max_recordings": ("max_recordings", _number(0, 64)),
    "otherwise": ("otherwise", _otherwise),
    "requests": ("requests", _requests),
    "metrics_port": ("metrics_port", _number(0, 65535)),
}
_PUSH_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "kind": ("kind", _kind),
    "url": ("url", _text),
    "headers_file": ("headers_file", _path),
    "timeout": ("timeout_s", _timeout),
}
_RULE_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "action": ("action", _action),
    "command": ("command", _patterns),
    "user": ("users", _users),
    "cgroup": ("cgroup", _patterns),
    "container": ("container", _patterns),
    "pid": ("pids", _pids),
    "service": ("service", _patterns),
    "pod": ("pod", _patterns),
    "unit": ("unit", _patterns),
    "options": ("options", _patterns),
}
assert {to for to, _ in _KEYS.values()} | {"rules", "push"} == {each.name for each in fields(Configuration)}
