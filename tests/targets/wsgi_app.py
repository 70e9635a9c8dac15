"""A WSGI application that says which process answered, and how many requests that has answered by now."""
import os

answered = 0


def handle():
    pass


def app(environ, start_response):
    global answered
    answered += 1
    for _ in range(10):
        handle()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d %d" % (os.getpid(), answered)]
