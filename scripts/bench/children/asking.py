"""Clients of a service on 127.0.0.1: asking.py PORT NUMBER.

The first line on stdin is what they ask with, again and again; each further one is answered by the number of answers so far.
"""

import selectors
import socket
import sys

port, number = int(sys.argv[1]), int(sys.argv[2])
body = sys.stdin.readline().strip().encode()
REQUEST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(body),
    body,
)
print(0, flush=True)
answered, selector = 0, selectors.DefaultSelector()
selector.register(sys.stdin, selectors.EVENT_READ)


def ask() -> None:
    """One more connection: gunicorn's sync workers keep none."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(REQUEST)
    selector.register(client, selectors.EVENT_READ, [])


for _ in range(number):
    ask()
while True:
    for key, _ in selector.select():
        if key.fileobj is sys.stdin:
            if not sys.stdin.readline():
                raise SystemExit
            print(answered, flush=True)
            continue
        try:
            more = key.fileobj.recv(1 << 20)
        except OSError:
            more = b""
        answer = [*key.data, more]
        if more:
            selector.modify(key.fileobj, selectors.EVENT_READ, answer)
            continue
        selector.unregister(key.fileobj)
        key.fileobj.close()
        head, _, content = b"".join(answer).partition(b"\r\n\r\n")
        answered += head.startswith(b"HTTP/1.1 200 ") and content.endswith(b"}")
        ask()
