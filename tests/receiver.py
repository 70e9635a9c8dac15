"""A server that profiles are sent to, and what is in a form."""

import threading
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tests.conftest import PATIENCE_S


class Receiver(HTTPServer):
    """Keeps what it is sent, and answers with `statuses`, the last one for good."""

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Keep)
        self.statuses, self.taken = list(statuses), list[tuple[str, Any, bytes]]()
        self.arrived = threading.Semaphore(0)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait(self) -> None:
        assert self.arrived.acquire(timeout=PATIENCE_S)


class _Keep(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, self.headers, body))
        self.send_response(self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0])
        self.send_header("Content-Length", "0")
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.server.arrived.release()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def form(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields of a multipart form."""
    message = BytesParser(EmailMessage, policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    return {str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True) for part in message.iter_parts()}
