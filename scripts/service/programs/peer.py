"""What the shop asks: an HTTP server, and one that speaks TLS and is far away. peer.py CERTIFICATE KEY prints both ports."""

import http.server
import ssl
import sys
import threading
import time

TAKES_S = {"/charge": 0.2, "/render": 0.2, "/ship": 0.1}
HANDSHAKE_S = 0.06


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(TAKES_S.get(self.path, 0.001))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


class Secure(http.server.ThreadingHTTPServer):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def finish_request(self, request, client_address):
        """In the thread of this client."""
        time.sleep(HANDSHAKE_S)
        with self.context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)


def main():
    Secure.context.load_cert_chain(*sys.argv[1:])
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers), Secure(("127.0.0.1", 0), Answers)]
    for server in servers:
        threading.Thread(target=server.serve_forever).start()
    print(*(server.server_port for server in servers), flush=True)


main()
