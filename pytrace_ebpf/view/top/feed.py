"""Where pictures come from: whatever speaks in lines of JSON over a connection, the process that records or a daemon."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pytrace_ebpf.trace import snapshot
from pytrace_ebpf.trace.snapshot import Snapshot

SAVED = "exact calls are in "  # with this a sentence begins that is worth to be seen when the view is left
_LONGEST = 64 << 20  # of a line
_GONE = "the process that records has ended"


@dataclass(frozen=True)
class Said:
    """Something happened: a sentence."""

    sentence: str


@dataclass(frozen=True)
class Ended:
    """Nothing more will come, and why; `code`: an exit code, 0 where that is as it should be."""

    sentence: str
    code: int = 0


News: TypeAlias = Snapshot | Said | Ended


class Source(Protocol):
    """Whatever pictures come from."""

    def start(self, deliver: Callable[[News], None]) -> None:
        """Call `deliver`, in a thread of its own, with whatever comes; Ended is the last."""

    def save(self, pids: Sequence[int], seconds: int, directory: str) -> None:
        """Have the exact calls of these processes recorded into this directory; what comes of it is Said."""

    def close(self) -> None:
        """No more is wanted."""


class Connection:
    """A Source at the other end of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._read = connection, connection.makefile("rb")

    def first(self) -> News:
        """What comes first, for which it waits; start() delivers the rest."""
        return next(iter(self._news()), Ended(_GONE, 4))

    def start(self, deliver: Callable[[News], None]) -> None:
        """As of Source."""
        threading.Thread(target=self._deliver, args=(deliver,), name="pictures", daemon=True).start()

    def save(self, pids: Sequence[int], seconds: int, directory: str) -> None:
        """As of Source."""
        with suppress(OSError):
            self._connection.sendall(json.dumps({"save": {"pids": list(pids), "seconds": seconds, "directory": directory}}).encode() + b"\n")

    def close(self) -> None:
        """As of Source."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _deliver(self, deliver: Callable[[News], None]) -> None:
        for news in self._news():
            deliver(news)
            if isinstance(news, Ended):
                return
        deliver(Ended(_GONE, 4))

    def _news(self) -> Iterator[News]:
        while True:
            try:
                line = self._read.readline(_LONGEST)
            except (OSError, ValueError):
                return
            if not line.endswith(b"\n"):
                return
            yield parsed(line.decode())


def parsed(line: str) -> News:
    """What a line says. Raises ValueError, KeyError and TypeError for one that is none of ours."""
    if line.startswith('{"facts"'):
        return snapshot.decode(line)
    given = json.loads(line)
    return Said(given["said"]) if "said" in given else Ended(given["ended"], given["code"])


def line_of(news: News) -> str:
    """The line that says it, without its end."""
    if isinstance(news, Snapshot):
        return snapshot.encode(news)
    return json.dumps({"said": news.sentence} if isinstance(news, Said) else {"ended": news.sentence, "code": news.code})
