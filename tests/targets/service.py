"""A WSGI service of the standard library that asks itself, and a coroutine service beside it; one request of each is slow."""

import asyncio
import threading
import time
import urllib.request
from wsgiref.simple_server import WSGIRequestHandler, make_server

from ready import done, ready

REQUESTS, SLOW = 30, 17


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def query(seconds):
    time.sleep(seconds)


def orders(environ, start_response):
    query(0.1 if environ["PATH_INFO"] == "/%d" % SLOW else 0.001)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]


async def fetch(seconds):
    await asyncio.sleep(seconds)


async def handle(number):
    await fetch(0.1 if number == SLOW else 0.001)


async def serve():
    await asyncio.gather(*(handle(number) for number in range(REQUESTS)))


def main():
    server = make_server("127.0.0.1", 0, orders, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for number in range(REQUESTS):
        urllib.request.urlopen("http://127.0.0.1:%d/%d" % (server.server_port, number)).read()
    server.shutdown()
    thread.join()
    server.server_close()
    asyncio.run(serve())


ready()
main()
done(requests=REQUESTS)
