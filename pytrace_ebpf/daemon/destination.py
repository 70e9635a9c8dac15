"""Where the daemon's configuration says that profiles are sent: [[push]]."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytrace_ebpf.daemon.push import TIMEOUT_S, Server
from pytrace_ebpf.errors import UsageError

OTLP, PYROSCOPE = "otlp", "pyroscope"
KINDS = (OTLP, PYROSCOPE)
_MOST_HEADERS = 1 << 16  # bytes


@dataclass(frozen=True)
class Destination:
    """A server, and what it takes: one of KINDS."""

    kind: str
    server: Server


def destination(values: Mapping[str, Any], where: str) -> Destination:
    """That of a table's keys, already parsed; `where` is for sentences. Raises UsageError."""
    for name in ("kind", "url"):
        if name not in values:
            raise UsageError(f"{where}: {name} is missing")
    try:
        headers = _headers(values["headers_file"]) if "headers_file" in values else {}
        return Destination(values["kind"], Server(values["url"], headers, values.get("timeout_s", TIMEOUT_S)))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _headers(path: Path) -> dict[str, str]:
    """Lines `Name: value` of a file that nobody else may read, since they may hold secrets. Raises UsageError, which never has a word of it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"headers_file {path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise UsageError(f"headers_file {path} must be a file of the daemon's user that nobody else may read: chmod 600 it")
        lines = file.read(_MOST_HEADERS).decode("ascii", "replace").splitlines()
    pairs = [line.partition(":") for line in lines if line.strip()]
    if not all(colon for _, colon, _ in pairs):
        raise UsageError(f"headers_file {path} has a line that is not Name: value")
    return {name.strip(): value.strip() for name, _, value in pairs}
