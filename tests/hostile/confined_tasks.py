"""What a test has a process without rights try: tests/hostile/test_parsing.py asks it."""

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any


def _said(attempt: Any) -> str:
    try:
        attempt()
    except OSError as error:
        return str(error.strerror)
    return "done"


def _attempts(_: dict[str, Any], files: list[int]) -> dict[str, str]:
    """The result of each attempt at something that it must not be able to do."""
    return {
        "open a file": _said(lambda: os.open("/etc/passwd", os.O_RDONLY)),
        "write to what it was given": _said(lambda: os.pwrite(files[0], b"x", 0)),
        "make a file": _said(lambda: Path("/made").mkdir()),
        "list a folder": _said(lambda: os.listdir("/")),  # noqa: PTH208
        "connect": _said(lambda: socket.socket()),
        "start a process": _said(lambda: os.fork()),
        "run a program": _said(lambda: os.execv("/bin/true", ["true"])),
        "send a signal": _said(lambda: os.kill(os.getppid() or 1, 0)),
        "become root": _said(lambda: os.setuid(0)),
        "leave its root": _said(lambda: os.chroot("/")),
    }


def _hang(_: dict[str, Any], files: list[int]) -> None:
    while True:
        time.process_time()


def _garbage(given: dict[str, Any], files: list[int]) -> None:
    os.write(int(sys.argv[1]), bytes.fromhex(given["content"]))
    _hang(given, files)


TASKS = {
    "attempts": _attempts,
    "hang": _hang,
    "garbage": _garbage,
    "end": lambda given, files: os._exit(0),
    "memory": lambda given, files: len(bytes(3 << 30)),
    "refuse": lambda given, files: int("\x1b[31mx"),
    "echo": lambda given, files: given["value"],
    "content": lambda given, files: os.read(files[0], 100).decode(),
}
