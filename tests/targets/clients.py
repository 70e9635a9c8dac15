"""What client libraries are asked for, by libraries themselves: HTTP of a server in another process, SQL of SQLite, commands, a pool.

Prints one JSON line: `asked`, {"function library statement": how often}, and `sql_ns`, what SQLAlchemy's own events say that its statements took.
"""

import asyncio
import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import django
import httpx
import requests
import sqlalchemy
import urllib3
from django.conf import settings

SECRET = "hunter7"
ANSWER_S = 0.01
asked = Counter()
sql_ns = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(ANSWER_S)  # else it may be there before who asked waits for it
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


def serving():
    """The port of a server, and its process, which ends with this one's end of a pipe."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    reading, writing = os.pipe()
    if not os.fork():
        os.close(writing)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.read(reading, 1)
        os._exit(0)
    return server.server_address[1]


def by_requests(url):
    with requests.Session() as session:
        for number in range(7):
            session.get(f"{url}/users/{number}?token={SECRET}", auth=("me", SECRET))


def by_urllib3(url):
    pool = urllib3.PoolManager()
    for _ in range(6):
        pool.request("GET", f"{url}/plain?token={SECRET}")


def by_urllib(url):
    for _ in range(5):
        urllib.request.urlopen(f"{url}/old?token={SECRET}").read()


def by_httpx(url):
    with httpx.Client() as client:
        for _ in range(4):
            client.get(url.replace("//", f"//me:{SECRET}@") + "/new")


async def by_aiohttp(url):
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.get(f"{url}/loop?token={SECRET}") as answer:
                await answer.read()


def by_sqlalchemy():
    engine = sqlalchemy.create_engine("sqlite://")

    @sqlalchemy.event.listens_for(engine, "before_cursor_execute")
    def before(connection, *_):
        connection.info["since"] = time.perf_counter_ns()

    @sqlalchemy.event.listens_for(engine, "after_cursor_execute")
    def after(connection, *_):
        global sql_ns
        sql_ns += time.perf_counter_ns() - connection.info["since"]

    with engine.connect() as connection:
        for number in range(11):
            connection.execute(sqlalchemy.text(f"SELECT '{SECRET}', {number}, :of"), {"of": SECRET}).all()


def by_django():
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, INSTALLED_APPS=[])
    django.setup()
    from django.db import connection

    with connection.cursor() as cursor:
        for number in range(8):
            cursor.execute(f"SELECT {number}, '{SECRET}'", [])


def by_subprocess():
    for _ in range(2):
        subprocess.run(["/bin/true", "--of", "others"], check=True)


def by_pool():
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(abs, range(9)))


def keep(engine, has, let_go):
    with contextlib.ExitStack() as kept:
        for _ in range(3):
            kept.enter_context(engine.connect())
        has.set()
        let_go.wait()


def borrow(engine):
    with engine.connect():
        pass


def by_connections():
    """All of a pool are out, and one waits for another."""
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.QueuePool, pool_size=3, max_overflow=0, connect_args={"check_same_thread": False})
    has, let_go = threading.Event(), threading.Event()
    keeper = threading.Thread(target=keep, args=(engine, has, let_go))
    keeper.start()
    has.wait()
    threading.Timer(0.1, let_go.set).start()
    borrow(engine)
    keeper.join()


def main():
    url = f"http://127.0.0.1:{serving()}"
    by_requests(url), by_urllib3(url), by_urllib(url), by_httpx(url)
    asyncio.run(by_aiohttp(url))
    by_sqlalchemy(), by_django(), by_subprocess(), by_pool(), by_connections()
    known = {
        f"by_requests requests GET {url}/users/?": 7,
        f"by_urllib3 urllib3 GET {url}/plain": 6,
        f"by_urllib urllib {url}/old": 5,
        f"by_httpx httpx GET {url}/new": 4,
        f"by_aiohttp aiohttp GET {url}/loop": 3,
        "by_sqlalchemy SQLAlchemy SELECT ?, ..., ?": 11,
        "by_django Django SELECT ?, ...": 8,
        "by_subprocess subprocess /bin/true --of": 2,
        "by_pool concurrent.futures ThreadPoolExecutor.submit": 9,
        "keep SQLAlchemy pool QueuePool._do_get": 3,
        "borrow SQLAlchemy pool QueuePool._do_get": 1,
    }
    print(json.dumps({"asked": known, "sql_ns": sql_ns, "server": url.removeprefix("http://")}), flush=True)
    sys.exit()


main()
