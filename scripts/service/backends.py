"""What the service needs beside itself: packages, PostgreSQL, redis, an HTTP peer, a certificate, and a reader of its log."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

HERE, CACHE = Path(__file__).parent, Path(__file__).parents[2] / ".build" / "service"
PACKAGES = (
    *("psycopg[binary,pool]", "sqlalchemy", "flask", "gunicorn", "fastapi", "uvicorn", "uvicorn-worker", "redis", "requests"),
    *("py-spy", "viztracer"),
)
DEBIAN = {"redis-server": "redis-server", "openssl": "openssl"}
PYTHON = CACHE / "venv" / "bin" / "python"
ITEMS, ORDERS, LINES = 200, 20, 5
TABLES = f"""
CREATE TABLE items (id int PRIMARY KEY, name text);
INSERT INTO items SELECT n, 'item ' || n FROM generate_series(1, {ITEMS}) n;
CREATE TABLE stock (id int PRIMARY KEY, left_over bigint);
INSERT INTO stock SELECT n, 1000000 FROM generate_series(1, {ITEMS}) n;
CREATE TABLE orders (id int PRIMARY KEY);
INSERT INTO orders SELECT n FROM generate_series(1, {ORDERS}) n;
CREATE TABLE order_lines (id int PRIMARY KEY, order_id int, price int);
INSERT INTO order_lines SELECT n, n / {LINES}, n FROM generate_series(1, {ORDERS * LINES}) n;
-- Each question takes as long as one to a server in another room.
CREATE VIEW lines AS SELECT l.* FROM (SELECT pg_sleep(0.003)) AS way, order_lines l;
"""


def set_up() -> None:
    """Install what is missing: Debian's PostgreSQL and redis, and the service's own Python packages in CACHE."""
    missing = [package for package, program in DEBIAN.items() if not shutil.which(program)]
    missing += [] if _postgres() else ["postgresql"]
    if missing:
        subprocess.run(["apt-get", "-qq", "update"], check=False)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing], check=True, env=environment)
    if not PYTHON.with_name("gunicorn").exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", CACHE / "venv"], check=True)
        subprocess.run([PYTHON, "-m", "pip", "-q", "install", *PACKAGES], check=True)


def _postgres() -> Path | None:
    """The folder of the newest PostgreSQL's programs."""
    return max((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")), default=None)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(what: Callable[[], bool], name: str) -> None:
    deadline = time.monotonic() + 60
    while not what():
        if time.monotonic() > deadline:
            sys.exit(f"{name} did not start")
        time.sleep(0.1)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Backends:
    """They run until the end of the block; `environment` tells the service where."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, list[subprocess.Popen[str]]()
        self.environment = dict(os.environ)

    def start(self, words: Sequence[str | Path], **how: object) -> "subprocess.Popen[str]":
        """A program that ends with the block."""
        process: subprocess.Popen[str] = subprocess.Popen(words, text=True, start_new_session=True, **how)  # type: ignore[call-overload]
        self._started.append(process)
        return process

    def end(self, process: "subprocess.Popen[str]") -> None:
        """And all that it started."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, how)
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                pass
            break

    def __enter__(self) -> "Backends":
        self._folder.chmod(0o755)
        redis, nobody = free_port(), free_port()
        self.start(["redis-server", "--port", str(redis), "--save", ""], stdout=subprocess.DEVNULL)
        database = self._start_postgres()
        certificate, key = self._folder / "certificate.pem", self._folder / "key.pem"
        words = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "30", "-subj", "/CN=127.0.0.1"]
        words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
        peer = self.start([PYTHON, HERE / "programs" / "peer.py", certificate, key], stdout=subprocess.PIPE)
        assert peer.stdout
        plain, secure = peer.stdout.readline().split()
        log = self._folder / "log"
        os.mkfifo(log)
        self.start(["/usr/bin/python3", "-c", READER, log])
        with (self._folder / "archive").open("wb") as file:
            for _ in range(64):
                file.write(os.urandom(1 << 18))
            os.fsync(file.fileno())
        wait_for(lambda: listens(redis), "redis")
        self.environment |= {
            "SHOP_PEER": f"http://127.0.0.1:{plain}",
            "SHOP_SECURE_PEER": f"https://127.0.0.1:{secure}",
            "SHOP_NOBODY": f"http://127.0.0.1:{nobody}",
            "SHOP_CERTIFICATE": str(certificate),
            "SHOP_DATABASE": database,
            "SHOP_REDIS": f"redis://127.0.0.1:{redis}/0",
            "SHOP_FOLDER": str(self._folder),
            "SHOP_LOG": str(log),
        }
        return self

    def _start_postgres(self) -> str:
        """At PostgreSQL's own port, by which tools know it, where that is free; as a user of its own, since it refuses root."""
        programs, data, port = _postgres(), self._folder / "postgres", 5432 if not listens(5432) else free_port()
        assert programs
        data.mkdir()
        shutil.chown(data, "postgres")
        us = ["runuser", "-u", "postgres", "--"]
        subprocess.run([*us, programs / "initdb", "-D", data, "-A", "trust", "-N"], check=True, stdout=subprocess.DEVNULL, cwd=data)
        words = ["-c", f"port={port}", "-c", f"unix_socket_directories={data}", "-c", "synchronous_commit=off", "-c", "log_min_messages=fatal"]
        self.start([*us, programs / "postgres", "-D", data, *words], cwd=data)
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        wait_for(lambda: subprocess.run(["psql", "-q", url, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0, "PostgreSQL")
        subprocess.run(["psql", "-q", url, "-v", "ON_ERROR_STOP=1", "-c", TABLES], check=True)
        return url

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            self.end(process)


READER = """
import os, sys, time
log = os.open(sys.argv[1], os.O_RDWR)  # of its own, so that it does not end with the last who writes
while os.read(log, 1 << 14):
    time.sleep(0.25)
"""  # of a log, as slow as a container's that is shipped away
