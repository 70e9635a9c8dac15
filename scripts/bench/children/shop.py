"""A small web service to slow down: each request reads an order in JSON, prices it item by item, and answers in JSON."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RATES = {"book": 0.07, "food": 0.07, "tool": 0.19}


def tax(kind: str, net: float) -> float:
    """What is added to a price."""
    return net * RATES[kind]


def discount(count: int) -> float:
    """What many of a kind are cheaper by."""
    return min(count // 10, 3) * 0.05


def price(item: dict) -> float:
    """Of one item of an order."""
    net = item["count"] * item["price"] * (1 - discount(item["count"]))
    return round(net + tax(item["kind"], net), 2)


class Shop(BaseHTTPRequestHandler):
    """Answers POST; connections are kept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave together

    def do_POST(self) -> None:
        """One order."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        lines = [{**item, "total": price(item)} for item in order]
        receipt = json.dumps(lines[:150], indent=1)  # written by json's Python code, the rest by its C code
        answer = json.dumps({"lines": lines, "total": sum(line["total"] for line in lines), "receipt": receipt}).encode()
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
