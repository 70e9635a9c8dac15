"""Threads that wait for something each before "ready"; a line of standard input ends their waits. Then what each waited for: {tid: [kind, name]}."""

import json
import os
import select
import socket
import sys
import threading
import time

listening = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
left, right = socket.socketpair()
reads, writes = os.pipe()
poll = select.poll()
poll.register(connection, select.POLLIN)
known = {}


def end(address):
    return f"{address[0]}:{address[1]}"


def waiting(function, kind, name):
    def run():
        known[threading.get_native_id()] = [kind, name]
        function()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


threads = [
    waiting(lambda: accepted.recv(1), "tcp", end(connection.getsockname())),
    waiting(poll.poll, "tcp", end(listening.getsockname())),
    waiting(lambda: listening._accept(), "tcp", end(listening.getsockname())),
    waiting(lambda: left.recv(1), "unix", ""),
    waiting(lambda: os.read(reads, 1), "pipe", ""),
]
time.sleep(0.1)
print("ready", flush=True)
sys.stdin.readline()
connection.sendall(b"!")
accepted.sendall(b"!")
another = socket.create_connection(listening.getsockname())
right.sendall(b"!")
os.write(writes, b"!")
for thread in threads:
    thread.join()
print("done", json.dumps(known), flush=True)
