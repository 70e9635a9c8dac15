"""As many connections as there is time for, each to one of four servers of another process: connections.py S. A function for each server receives.

Descriptors and ports are used again at once. Prints one JSON line: {function: "address:port" of its server}, and "made": how many connections.
"""

import json
import os
import random
import socket
import sys
import threading
import time

SECONDS = float(sys.argv[1])
SERVERS = [socket.create_server(("127.0.0.1", 0), backlog=1000) for _ in range(4)]
AT_ONCE = b"\1\0\0\0\0\0\0\0"  # struct linger: the port is free when the connection is closed


def serve(server):
    while True:
        connection = server.accept()[0]
        connection.recv(1)
        connection.sendall(b"!")
        connection.close()


def first(connection):
    connection.recv(1)


def second(connection):
    connection.recv(1)


def third(connection):
    connection.recv(1)


def fourth(connection):
    connection.recv(1)


RECEIVE = (first, second, third, fourth)


def connects(ends, made):
    while time.monotonic() < ends:
        number = random.randrange(len(SERVERS))
        with socket.create_connection(SERVERS[number].getsockname()) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            connection.sendall(b"?")
            RECEIVE[number](connection)
        made.append(None)


def main():
    end, here = os.pipe()
    if os.fork() == 0:
        os.close(here)
        for server in SERVERS:
            threading.Thread(target=serve, args=(server,), daemon=True).start()
        os.read(end, 1)
        os._exit(0)
    made, ends = [], time.monotonic() + SECONDS
    threads = [threading.Thread(target=connects, args=(ends, made)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    names = {receive.__name__: "{}:{}".format(*server.getsockname()) for receive, server in zip(RECEIVE, SERVERS)}
    print(json.dumps({"names": names, "made": len(made)}), flush=True)


main()
