"""A port of this host's alone at which Prometheus asks for the daemon's metrics: GET /metrics."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.view.metrics import CONTENT_TYPE

ADDRESS = "127.0.0.1"
_TIMEOUT_S = 2.0  # for whoever connects: requests are answered one after the other
_ENDS_S = 5.0
_PAUSE_S = 0.2
_HOSTS = ("127.0.0.1", "localhost")


class MetricsPort:
    """Answers until close(). Every user of this host may ask."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        """`text` is called for each request, by a thread of its own. `port` 0: a free one. Raises HostError where it cannot be had."""
        try:
            self._server = _Server((ADDRESS, port), _Answer)
        except OSError as error:
            raise HostError(f"metrics cannot be served on {ADDRESS}:{port} ({error.strerror}); choose another port") from error
        self._server.text = text
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="pytrace-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """That which it is."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_ENDS_S)


class _Server(TCPServer):
    text: Callable[[], str]
    allow_reuse_address = True
    request_queue_size = 16

    def get_request(self) -> tuple[socket.socket, Any]:
        """Who connects, while files can be opened; else later, without asking again and again."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks may go at any moment."""


class _Answer(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server
    server_version, sys_version = "pytrace-ebpf", ""

    def setup(self) -> None:
        """Whoever sends a byte now and then would keep the others waiting."""
        super().setup()
        self._ends = threading.Timer(_TIMEOUT_S, self._shut)
        self._ends.daemon = True
        self._ends.start()

    def _shut(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """It was answered."""
        self._ends.cancel()
        super().finish()

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
