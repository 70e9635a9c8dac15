"""Waits behind descriptors, one function for each way, and what each is for by the program's own knowledge.

Written to the file that is named: {function: [kind, name]}, in the order in which they wait.
"""

import json
import os
import select
import socket
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(sys.argv[1]))
WAIT_S = 0.03
known = {}


def answering(server):
    """Answer each connection's every byte a moment later."""

    def serve(connection):
        while data := connection.recv(16):
            time.sleep(WAIT_S)
            connection.sendall(data)

    def accept():
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    server.listen()
    threading.Thread(target=accept, daemon=True).start()


def bound(family, address):
    server = socket.socket(family)
    server.bind(address)
    answering(server)
    return server


def end(address):
    return f"[{address[0]}]:{address[1]}" if len(address) == 4 else f"{address[0]}:{address[1]}"


INET, INET6 = bound(socket.AF_INET, ("127.0.0.1", 0)), bound(socket.AF_INET6, ("::1", 0))
PATH = os.path.join(HERE, "a.sock")
UNIX, ABSTRACT = bound(socket.AF_UNIX, PATH), bound(socket.AF_UNIX, f"\0resources-{os.getpid()}")


def connected(server):
    client = socket.socket(server.family)
    client.connect(server.getsockname())
    return client


def asked(client):
    client.sendall(b"?")
    return client


def recv(client):
    asked(client).recv(1)


def read(client):
    os.read(asked(client).fileno(), 1)


def recvmsg(client):
    asked(client).recvmsg(1)


def readv(client):
    os.readv(asked(client).fileno(), [bytearray(1)])


def with_timeout(client):
    client.settimeout(5)
    asked(client).recv(1)
    client.settimeout(None)


def by_poll(client):
    poll = select.poll()
    poll.register(asked(client), select.POLLIN)
    poll.poll(5000)
    client.recv(1)


def by_select(client):
    select.select([asked(client)], [], [], 5)
    client.recv(1)


def by_poll_of_several(client):
    """The second of three is ready."""
    others = [socket.socketpair() for _ in range(2)]
    poll = select.poll()
    for each in (others[0][0], asked(client), others[1][0]):
        poll.register(each, select.POLLIN)
    poll.poll(5000)
    client.recv(1)
    for each in (*others[0], *others[1]):
        each.close()


def by_select_of_several(client):
    """The same, and one of them waits to be written to."""
    full, other = socket.socketpair()
    full.setblocking(False)
    try:
        while True:
            full.send(b"x" * 4096)
    except BlockingIOError:
        pass
    reading, writing = os.pipe()
    select.select([reading, asked(client)], [full], [], 5)
    client.recv(1)
    for each in (full, other):
        each.close()
    os.close(reading)
    os.close(writing)


def by_epoll(client):
    """Among others, of which none is ready."""
    with select.epoll() as epoll:
        for other in (INET, INET6, UNIX):
            epoll.register(other, select.EPOLLIN)
        epoll.register(asked(client), select.EPOLLIN)
        epoll.poll(5)
    client.recv(1)


def recv_inet6(client):
    asked(client).recv(1)


def recv_unix(client):
    asked(client).recv(1)


def recv_abstract(client):
    asked(client).recv(1)


def again(client):
    """The descriptor of the socket before, another peer."""
    asked(client).recv(1)


def later(action, *arguments):
    thread = threading.Thread(target=lambda: (time.sleep(WAIT_S), action(*arguments)))
    thread.start()
    return thread


def accepted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        known["accepted"] = ["tcp", end(server.getsockname())]
        client = socket.socket()
        thread = later(client.connect, server.getsockname())
        os.close(server._accept()[0])
        thread.join()
        client.close()


def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", 0))
        known["datagram"] = ["udp", end(server.getsockname())]
        thread = later(client.sendto, b"!", server.getsockname())
        server.recv(1)
        thread.join()


def pair():
    ours, theirs = socket.socketpair()
    known["pair"] = ["unix", ""]
    thread = later(theirs.sendall, b"!")
    ours.recv(1)
    thread.join()
    ours.close()
    theirs.close()


def pipe_of_several():
    """poll() of two pipes, as subprocess does for what a child says."""
    ends = [os.pipe() for _ in range(2)]
    known["pipe_of_several"] = ["pipe", ""]
    poll = select.poll()
    for reading, _ in ends:
        poll.register(reading, select.POLLIN)
    thread = later(os.write, ends[1][1], b"!")
    poll.poll(5000)
    thread.join()
    for end in (*ends[0], *ends[1]):
        os.close(end)


def passed():
    """A socket that came over a unix socket."""
    left, right = socket.socketpair()
    client = connected(INET)
    socket.send_fds(left, [b"x"], [client.fileno()])
    client.close()
    _, (descriptor,), _, _ = socket.recv_fds(right, 1, 1)
    client = socket.socket(fileno=descriptor)
    known["passed"] = ["tcp", end(INET.getsockname())]
    asked(client).recv(1)
    for each in (client, left, right):
        each.close()


def pipe():
    reading, writing = os.pipe()
    known["pipe"] = ["pipe", ""]
    thread = later(os.write, writing, b"!")
    os.read(reading, 1)
    thread.join()
    os.close(reading)
    os.close(writing)


def fifo():
    path = os.path.join(HERE, "a fifo")
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    known["fifo"] = ["pipe", ""]
    thread = later(os.write, descriptor, b"!")
    os.read(descriptor, 1)
    thread.join()
    os.close(descriptor)


def full_pipe():
    reading, writing = os.pipe()
    known["full_pipe"] = ["pipe", ""]
    thread = later(os.read, reading, 1 << 20)
    os.write(writing, b"x" * (1 << 17))
    thread.join()
    os.close(reading)
    os.close(writing)


def inherited():
    """What a forked child waits for."""
    reading, writing = os.pipe()
    known["inherited"] = ["pipe", ""]
    child = os.fork()
    if not child:
        os.read(reading, 1)
        os._exit(0)
    while True:
        with open(f"/proc/{child}/stat") as file:
            if ") S " in file.read():
                break
        time.sleep(0.001)
    time.sleep(WAIT_S)
    os.write(writing, b"!")
    os.wait()


def a_child():
    """Whichever ends first."""
    known["a_child"] = ["child", "sleep"]
    for seconds in ("0.03", "0.06"):
        os.posix_spawn("/bin/sleep", ["sleep", seconds], {})
    for _ in range(2):
        os.wait()


def locked():
    """flock(2) of a file that was renamed since it was opened."""
    import fcntl

    before, now = os.path.join(HERE, "before"), os.path.join(HERE, "deep", "er", "now")
    os.makedirs(os.path.dirname(now))
    first = open(before, "w")
    os.rename(before, now)
    second = open(now)
    known["locked"] = ["file", now]
    fcntl.flock(first, fcntl.LOCK_EX)
    thread = later(fcntl.flock, first, fcntl.LOCK_UN)
    fcntl.flock(second, fcntl.LOCK_EX)
    thread.join()


def main():
    client = connected(INET)
    for each in (recv, read, recvmsg, readv, with_timeout, by_poll, by_select, by_poll_of_several, by_select_of_several, by_epoll):
        known[each.__name__] = ["tcp", end(INET.getsockname())]
        each(client)
    client.close()
    for each, server, name in (
        (recv_inet6, INET6, end(INET6.getsockname())),
        (recv_unix, UNIX, PATH),
        (recv_abstract, ABSTRACT, f"@resources-{os.getpid()}"),
        (again, INET, end(INET.getsockname())),
    ):
        with connected(server) as client:
            known[each.__name__] = ["unix" if server.family == socket.AF_UNIX else "tcp", name]
            each(client)
    for each in (accepted, datagram, pair, pipe_of_several, passed, pipe, fifo, full_pipe, inherited, a_child, locked):
        if each is not passed or hasattr(socket, "send_fds"):  # since 3.9
            each()
    with open(sys.argv[1], "w") as file:
        json.dump(known, file)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)  # for who reads the names of its functions from outside


main()
