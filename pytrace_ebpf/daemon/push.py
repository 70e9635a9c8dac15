"""Sends profiles to a server elsewhere, beside what the daemon does: it never waits for that server, and holds few payloads for it."""

import http.client
import socket
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pytrace_ebpf.errors import UsageError

TIMEOUT_S, LAST_S = 10.0, 1.0  # the latter at the end
MOST_WAITING = 6  # payloads
MOST_WAITING_BYTES = 64 << 20
_LEAST_PAUSE_S, _MOST_PAUSE_S = 1.0, 60.0  # after what may do later
_LATER = (429, 502, 503, 504)  # of HTTP's status, as OTLP says
_ANSWER = 1 << 16  # bytes that are read of one


@dataclass(frozen=True)
class Payload:
    """What is sent: to which path of the server, with its query, and what it is."""

    path: str
    body: bytes
    content_type: str
    encoding: str = ""


@dataclass(frozen=True)
class Server:
    """Where to send, and with which headers besides; those may hold secrets, and nothing ever shows them. Raises UsageError for what is no such address."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query and not parts.fragment
        except ValueError:
            known = False
        if not known or not self.url.isprintable() or " " in self.url:
            raise UsageError("the address to send profiles to is not one like http://localhost:4318")
        if parts.username or parts.password:
            raise UsageError("the address to send profiles to has a password in it: give a header instead")
        if not all(_is_header(name, value) for name, value in self.headers.items()):
            raise UsageError("a header to send profiles with is none: its name or its value has characters that none can have")

    @property
    def name(self) -> str:
        """What may be shown of it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def post(self, payload: Payload) -> int:
        """The status that it answers with. Raises OSError and http.client.HTTPException; no call of the system's takes longer than timeout_s."""
        parts = urlsplit(self.url)
        assert parts.hostname
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=self.timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_s)
        # Whoever answers a byte now and then would hold it for hours.
        late = threading.Event()
        ends = threading.Timer(3 * self.timeout_s, _shut, (connection, late))
        ends.daemon = True
        ends.start()
        try:
            headers = {"User-Agent": "pytrace-ebpf", **self.headers, "Content-Type": payload.content_type}
            if payload.encoding:
                headers["Content-Encoding"] = payload.encoding
            connection.request("POST", parts.path.rstrip("/") + payload.path, payload.body, headers)
            answer = connection.getresponse()
            answer.read(_ANSWER)
            if late.is_set():
                raise TimeoutError
            return answer.status
        finally:
            ends.cancel()
            connection.close()


class Push:
    """Sends what it is given, in a thread of its own and in that order."""

    def __init__(self, server: Server, most: int = MOST_WAITING, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self._server, self._most, self._most_bytes = server, most, most_bytes
        self._waiting: deque[Payload] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._sent = self._dropped = self._refused = self._failed = 0
        self._why: str | None = None
        self._thread = threading.Thread(target=self._run, name="pytrace-push", daemon=True)
        self._thread.start()

    def push(self, payload: Payload) -> None:
        """Take a payload; the oldest that wait go, where there are too many. Returns at once."""
        with self._changed:
            self._waiting.append(payload)
            while self._waiting and (len(self._waiting) > self._most or sum(len(each.body) for each in self._waiting) > self._most_bytes):
                self._waiting.popleft()
                self._dropped += 1
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """Payloads that were sent, refused by the server, dropped because too many waited; attempts that failed, and why the last one did (None: it did not)."""
        with self._changed:
            return {
                "server": self._server.name, "sent": self._sent, "refused": self._refused, "dropped": self._dropped, "failed": self._failed,
                "waiting": len(self._waiting), "why": self._why,
            }  # fmt: skip

    def end(self) -> None:
        """Begin to end: try once what waits."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, within_s: float = LAST_S) -> None:
        """end(), and wait for that; what takes longer is dropped."""
        self.end()
        self._thread.join(within_s)

    def _run(self) -> None:
        pause_s = _LEAST_PAUSE_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                payload = self._waiting[0]
            later = self._attempt(payload)
            with self._changed:
                if self._waiting and self._waiting[0] is payload and not later:
                    self._waiting.popleft()
                if not later:
                    pause_s = _LEAST_PAUSE_S
                elif self._closing or self._changed.wait_for(lambda: self._closing, pause_s):
                    return
                else:
                    pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def _attempt(self, payload: Payload) -> bool:
        """Send it; True: another time."""
        try:
            status, why = self._server.post(payload), None
        except (OSError, http.client.HTTPException, ValueError) as error:
            status, why = 0, _said(error)
        with self._changed:
            if 200 <= status < 300:
                self._sent, self._why = self._sent + 1, None
                return False
            self._why = why or f"it answered {status}"
            if status and status not in _LATER:
                self._refused += 1
                return False
            self._failed += 1
            return True


def _shut(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    late.set()
    if connection.sock is not None:
        with suppress(OSError):  # it has ended
            connection.sock.shutdown(socket.SHUT_RDWR)


def _said(error: Exception) -> str:
    """What went wrong, in the system's words: never what was sent, nor what the server wrote."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "its answer is no HTTP" if isinstance(error, http.client.HTTPException) else type(error).__name__


def _is_header(name: str, value: str) -> bool:
    return name.replace("-", "").replace("_", "").isalnum() and name.isascii() and value.isprintable() and value.isascii()
