"""A shop's web service, as gunicorn's workers run it with threads. A planted cause lies at the lines that name it."""

import contextlib
import logging
import os
import queue
import subprocess
import threading
import time

import flask
import psycopg_pool
import redis
import requests
import sqlalchemy
from sqlalchemy import orm

PEER, SECURE_PEER, NOBODY, CERTIFICATE = (os.environ[f"SHOP_{name}"] for name in ("PEER", "SECURE_PEER", "NOBODY", "CERTIFICATE"))
DATABASE, FOLDER = os.environ["SHOP_DATABASE"], os.environ["SHOP_FOLDER"]
THREADS, BLOCK = 8, 1 << 16

app = flask.Flask(__name__)
PLAIN = {"autocommit": True}
POOL = psycopg_pool.ConnectionPool(DATABASE, min_size=THREADS, max_size=THREADS, kwargs=PLAIN, open=True)
REPORTS = psycopg_pool.ConnectionPool(DATABASE, min_size=2, max_size=2, timeout=600, kwargs=PLAIN, open=True)
ENGINE = sqlalchemy.create_engine(DATABASE.replace("postgresql://", "postgresql+psycopg://"), pool_size=THREADS)
CACHE = redis.Redis.from_url(os.environ["SHOP_REDIS"])
LOCAL, JOURNAL_LOCK, JOBS, LOG = threading.local(), threading.Lock(), queue.Queue(2), logging.getLogger("shop")
JOURNAL = open(f"{FOLDER}/journal-{os.getpid()}", "ab")


class Base(orm.DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id = orm.mapped_column(sqlalchemy.Integer, primary_key=True)
    lines = orm.relationship("Line")


class Line(Base):
    __tablename__ = "lines"
    id = orm.mapped_column(sqlalchemy.Integer, primary_key=True)
    order_id = orm.mapped_column(sqlalchemy.ForeignKey("orders.id"))
    price = orm.mapped_column(sqlalchemy.Integer)


def session():
    """This thread's own."""
    if not hasattr(LOCAL, "session"):
        LOCAL.session = requests.Session()
    return LOCAL.session


@app.get("/item")
def item():
    """What is asked for all the time: nothing of it is slow."""
    price = CACHE.get("price:7")
    with POOL.connection() as connection:
        name = connection.execute("SELECT name FROM items WHERE id = %s", [7]).fetchone()
    return f"{name} {price}"


@app.get("/reserve")
def reserve():
    with POOL.connection() as connection:
        connection.execute("UPDATE stock SET left_over = left_over - 1 WHERE id = %s", [1])  # cause: row-lock
    return "reserved"


@app.get("/statement")
def statement():
    with REPORTS.connection() as connection:  # cause: pool
        return str(connection.execute("SELECT count(*) FROM items").fetchone())


@app.get("/report")
def report():
    with REPORTS.connection() as connection:  # cause: pool
        rows = connection.execute("SELECT name FROM items LIMIT 20").fetchall()
        session().post(f"{PEER}/render", json=[name for (name,) in rows])
    return "rendered"


@app.get("/pay")
def pay():
    session().post(f"{PEER}/charge", json={"amount": 7})  # cause: peer
    return "paid"


@app.get("/journal")
def journal():
    with JOURNAL_LOCK:  # cause: fsync
        append(b"paid\n" * 1000)
    return "kept"


def append(words):
    JOURNAL.write(words)
    JOURNAL.flush()
    os.fsync(JOURNAL.fileno())  # cause: fsync


@app.get("/quote")
def quote():
    total = 0
    for number in range(200_000):  # cause: quota
        total += number % 7
    return str(total)


@app.get("/notify")
def notify():
    for attempt in range(4):
        with contextlib.suppress(requests.ConnectionError):
            session().post(f"{NOBODY}/hook", json={}, timeout=5)  # cause: refused
            break
        time.sleep(0.05 * 2**attempt)  # cause: refused
    return "notified"


@app.get("/charge")
def charge():
    with requests.Session() as fresh:
        fresh.post(f"{SECURE_PEER}/fast", json={"amount": 7}, verify=CERTIFICATE)  # cause: tls
    return "charged"


@app.get("/listing")
def listing():
    with orm.Session(ENGINE) as database:
        return str([price(order) for order in database.scalars(sqlalchemy.select(Order).limit(20))])  # cause: many


def price(order):
    return sum(line.price for line in order.lines)  # cause: many


@app.get("/slot")
def slot():
    for _ in range(20):
        if CACHE.set("slot", "mine", nx=True):
            break
        time.sleep(0.05)  # cause: sleep
    return "waited"


@app.get("/login")
def login():
    LOG.warning("login failed: %s", "x" * 2000)  # cause: log
    return "no"


@app.get("/thumbnail")
def thumbnail():
    subprocess.run(["sleep", "0.2"], check=True)  # cause: subprocess
    return "made"


@app.get("/archive")
def archive():
    descriptor = os.open(f"{FOLDER}/archive", os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for at in range(4):
            os.pread(descriptor, BLOCK, (int(time.monotonic_ns()) % 64 + at) * BLOCK)  # cause: disk
    finally:
        os.close(descriptor)
    return "read"


@app.get("/enqueue")
def enqueue():
    JOBS.put("job")  # cause: queue
    return "queued"


def ship():
    """Takes jobs from the queue, slowly."""
    while True:
        JOBS.get()
        session().post(f"{PEER}/ship", json={})


LOG.propagate = False
LOG.addHandler(logging.StreamHandler(open(os.environ["SHOP_LOG"], "w")))
threading.Thread(target=ship, daemon=True).start()
