"""A small web service to slow down: it answers orders."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orders


class Shop(BaseHTTPRequestHandler):
    """Answers POST; connections are kept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave together

    def do_POST(self) -> None:
        """One order."""
        answer = orders.answer(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
