"""Asks another process over TCP, a pipe and a pair of unix sockets for a while, and says which process that is."""

import socket
import subprocess
import sys
import time

from ready import done, ready

ANSWERS = """
import os, socket, sys, threading
def serve(read, write):
    while data := read(1):
        threading.Event().wait(0.01)
        write(data)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
pair = socket.socket(fileno=int(sys.argv[1]))
for read, write in ((connection.recv, connection.sendall), (pair.recv, pair.sendall), (lambda size: os.read(0, size), lambda data: os.write(1, data))):
    threading.Thread(target=serve, args=(read, write)).start()
"""


def main():
    ours, theirs = socket.socketpair()
    with subprocess.Popen([sys.executable, "-c", ANSWERS, str(theirs.fileno())], stdin=-1, stdout=-1, pass_fds=[theirs.fileno()], bufsize=0) as child:
        theirs.close()
        client = socket.create_connection(("127.0.0.1", int(child.stdout.readline())))
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            client.sendall(b"?")
            client.recv(1)
            ours.sendall(b"?")
            ours.recv(1)
            child.stdin.write(b"?")
            child.stdout.read(1)
        done(child=child.pid, server=":".join(map(str, client.getpeername())))
        for each in (client, ours, child.stdin):
            each.close()


ready()
main()
