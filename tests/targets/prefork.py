"""A master that forked its workers before anybody looked, as a web server does: they wait for requests, each counts what it served."""
import os
import socket

from ready import done, ready, words

WORKERS, REQUESTS = 3, 20


def handle(number):
    return number + 1


def serve(listener):
    served = 0
    while True:
        connection, _ = listener.accept()
        request = connection.recv(100)
        if request == b"end":
            connection.sendall(("%d %d" % (os.getpid(), served)).encode())
            os._exit(0)
        for number in range(10):
            handle(number)
        served += 10
        connection.sendall(b"served")
        connection.close()


def work(listener):
    pid = os.fork()
    if pid == 0:
        serve(listener)
    return pid


def ask(listener, request):
    with socket.socket() as client:
        client.connect(listener.getsockname())
        client.sendall(request)
        return client.recv(100)


def main():
    # One listener each, so that every worker is asked.
    listeners = []
    for _ in range(WORKERS):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        listeners.append(listener)
    workers = [work(listener) for listener in listeners]
    ready()
    if "replace" in words():  # as a master does whose worker was killed
        os.waitpid(workers[0], 0)
        workers[0] = work(listeners[0])
        ready()
    for _ in range(REQUESTS):
        for listener in listeners:
            ask(listener, b"request")
    served = dict(ask(listener, b"end").decode().split() for listener in listeners)
    for pid in workers:
        os.waitpid(pid, 0)
    done(handled={int(pid): int(count) for pid, count in served.items()}, workers=workers)


main()
