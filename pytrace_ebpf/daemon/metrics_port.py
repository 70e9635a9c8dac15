"""A port of this host's alone at which Prometheus asks for the daemon's metrics: GET /metrics.

Every user of the host may connect, and nobody can keep the others out: each connection has a thread and an end, a user has few at a
time, and where all are taken the user with most of them loses one. Whose a connection is the kernel says.
"""

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.view.metrics import CONTENT_TYPE

ADDRESS = "127.0.0.1"
MOST, MOST_OF_ONE = 32, 4  # connections at a time: of all users, of one
_TIMEOUT_S = 5.0  # for whoever connects, on a host that is busy too
_LOOK_S = 0.2  # how often it is seen whose time is over
_ENDS_S = 1.0
_PAUSE_S = 0.2
_HOSTS = ("127.0.0.1", "localhost")
# struct inet_diag_req_v2 and inet_diag_msg of linux/inet_diag.h, behind a struct nlmsghdr
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ANY_STATE = 4, 20, 1, 0xFFFFFFFF
_HEAD, _ASKED, _UID = 16, struct.Struct("<BBBxI"), 64


class MetricsPort:
    """Answers until close(). Every user of this host may ask."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        """`text` is called for each request, by a thread of its own. `port` 0: a free one. Raises HostError where it cannot be had."""
        try:
            self._server = _Server((ADDRESS, port), _Answer)
        except OSError as error:
            raise HostError(f"metrics cannot be served on {ADDRESS}:{port} ({error.strerror}); choose another port") from error
        self._server.text = text
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name="pytrace-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """That which it is."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._server.leave()
        self._thread.join(_ENDS_S)


@dataclass
class _Connection:
    socket: socket.socket
    user: int | None
    ends_s: float


class _Server(ThreadingMixIn, TCPServer):
    text: Callable[[], str]
    allow_reuse_address = True
    request_queue_size = 4096  # all are accepted at once, and who is refused learns it: in a queue that is full a user's would keep out others'
    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:
        self._connections: dict[int, _Connection] = {}  # by descriptor, the oldest first
        self._changing = threading.Lock()
        super().__init__(*args)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Who connects, while files can be opened; else later, without asking again and again."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more of this user: where all places are taken, one of the user with most of them is left."""
        user = user_of(client_address, self.server_address)  # type: ignore[arg-type] # of IPv4
        with self._changing:
            held = Counter(each.user for each in self._connections.values())
            if held[user] >= MOST_OF_ONE:
                return False
            if len(self._connections) >= MOST:
                ((most, count),) = held.most_common(1)
                if count <= held[user]:
                    return False
                left = next(number for number, each in self._connections.items() if each.user == most)
                _shut(self._connections.pop(left).socket)
            self._connections[request.fileno()] = _Connection(request, user, time.monotonic() + _TIMEOUT_S)
        return True

    def shutdown_request(self, request: Any) -> None:
        """It was answered, or refused."""
        with self._changing:
            known = self._connections.get(request.fileno())
            if known and known.socket is request:
                del self._connections[request.fileno()]
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Leave those whose time is over: whoever sends a byte now and then, too."""
        now_s = time.monotonic()
        with self._changing:
            for each in self._connections.values():
                if now_s >= each.ends_s:
                    _shut(each.socket)

    def leave(self) -> None:
        """Leave all."""
        with self._changing:
            for each in self._connections.values():
                _shut(each.socket)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks may go at any moment."""


class _Answer(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server
    server_version, sys_version = "pytrace-ebpf", ""

    def do_GET(self) -> None:
        """Answer with the metrics; a page of another site that has a browser of this host ask is refused by the name that it asks for."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if self.path.split("?")[0] != "/metrics" or host not in _HOSTS:
            self.send_error(404)
            return
        body = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


def user_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Whose the other end of a connection on this host is, None where that cannot be seen (any more). Takes the same time however many there are."""
    try:
        return _asked_for(peer, own)
    except OSError:  # a kernel without inet_diag
        return _listed(peer, own)


def _asked_for(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    ports = struct.pack(">HH", peer[1], own[1])
    addresses = b"".join(socket.inet_aton(host).ljust(16, b"\0") for host, _ in (peer, own))
    body = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY_STATE) + ports + addresses + struct.pack("<III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as asking:
        asking.settimeout(_TIMEOUT_S)
        asking.send(struct.pack("<IHHII", _HEAD + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body)
        answer = asking.recv(4096)
    (kind,) = struct.unpack_from("<H", answer, 4)
    if kind != _BY_FAMILY:
        (number,) = struct.unpack_from("<i", answer, _HEAD)
        if -number == 2:  # ENOENT: it has gone
            return None
        raise OSError(-number, "sock_diag")
    return int(struct.unpack_from("<I", answer, _HEAD + _UID)[0])


def _listed(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    wanted = tuple(f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}" for host, port in (peer, own))
    with suppress(OSError), Path("/proc/net/tcp").open() as file:
        for line in file:
            fields = line.split()
            if (fields[1], fields[2]) == wanted:
                return int(fields[7])
    return None


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
