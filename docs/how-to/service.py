"""A web service with one slow endpoint, and clients that ask it: python3 service.py [SECONDS]."""

import json
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ledger = threading.Lock()
stock = dict.fromkeys(("apples", "pears", "plums"), 100)


def price(name: str) -> int:
    return sum(len(name) * i % 7 for i in range(2000))


def list_stock() -> dict[str, int]:
    return {name: price(name) for name in stock}


def sell(name: str) -> dict[str, int]:
    with ledger:  # everybody who sells waits for whoever writes
        stock[name] -= 1
        write_receipt(name)
    return {name: stock[name]}


def write_receipt(name: str) -> None:
    time.sleep(0.02)  # a printer, a remote service, a slow disk


class Shop(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = sell(self.path[6:]) if self.path.startswith("/sell/") else list_stock()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def client(port: int, until: float) -> None:
    while time.monotonic() < until:
        for path in ("stock", "sell/apples"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}").read()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    until = time.monotonic() + float(sys.argv[1] if sys.argv[1:] else 3)
    clients = [threading.Thread(target=client, args=(server.server_port, until)) for _ in range(4)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
