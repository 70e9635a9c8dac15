"""What `attach --match` takes of a service's requests a second: gunicorn (sync and gthread) and uvicorn, with several workers, under load.

Each service and its clients, who wait for nothing but its answers, run on; they are untraced and traced in turn, and a round's ratio is that of two
neighbours. The clients are a process of their own, which takes a core's time too, as the tracer does: where the cores are full, what either takes is taken
from the service. Only 127.0.0.1 is used. Needs gunicorn and uvicorn in the Python that runs this: .venv/bin/pip install gunicorn uvicorn

    scripts/bench/prefork.py [--rounds 5] [--seconds 4] [--clients 8] [--workers 2] [--services gunicorn-sync,gunicorn-gthread,uvicorn] [--options ...]
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from children.orders import ITEMS

CHILDREN = Path(__file__).parent / "children"
CLIENTS = CHILDREN / "asking.py"
SERVICES = {
    "gunicorn-sync": ["gunicorn", "--worker-class", "sync", "served:wsgi"],
    "gunicorn-gthread": ["gunicorn", "--worker-class", "gthread", "--threads", "4", "served:wsgi"],
    "uvicorn": ["uvicorn", "--no-access-log", "--log-level", "warning", "served:asgi"],
}
SETTLED_S = 1.0  # of each turn, that does not count: a tracer that begins, or one that has just ended


@contextmanager
def serving(name: str, workers: int) -> Iterator[int]:
    """A service that answers; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module, *words = SERVICES[name]
    where = ["--bind", f"127.0.0.1:{port}"] if module == "gunicorn" else ["--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", module, "--workers", str(workers), *where, *words]
    service = subprocess.Popen(
        command, cwd=CHILDREN, env=os.environ | {"PYTHONPATH": str(CHILDREN)}, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if service.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{name} did not start: .venv/bin/pip install gunicorn uvicorn") from None
                time.sleep(0.1)
        yield port
    finally:
        service.terminate()
        service.wait(30)


class Clients:
    """A process that asks and asks."""

    def __init__(self, port: int, number: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, CLIENTS, str(port), str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        self._said(json.dumps(ITEMS))

    def over(self, seconds: float) -> float:
        """Requests a second from now on, for so long."""
        began, before = time.monotonic(), int(self._said(""))
        time.sleep(seconds)
        answered = int(self._said("")) - before
        return answered / (time.monotonic() - began)

    def _said(self, line: str) -> str:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        """No more requests."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def traced(pattern: str, options: list[str]) -> Iterator[list[str]]:
    """While the block runs; what the tracer says is in the list afterwards."""
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        words = ["-m", "pytrace_ebpf", "attach", "--match", pattern, "-o", f"{folder}/trace", *options]
        tracer = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
        assert tracer.stderr
        said.append(tracer.stderr.readline().rstrip())
        try:
            yield said
        finally:
            tracer.send_signal(signal.SIGINT)
            said += (tracer.communicate()[1] or "").splitlines()
        report = subprocess.run([sys.executable, "-m", "pytrace_ebpf", "report", f"{folder}/trace"], capture_output=True, text=True).stdout
        said += re.findall(r"^(?:Tracing cost|Nothing was lost|LOST|To keep).*", report, re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--services", type=lambda text: text.split(","), default=list(SERVICES))
    parser.add_argument("--options", type=str.split, default=[], help="of attach, in one word")
    parser.add_argument("--say", action="store_true", help="print all that the tracer says")
    args = parser.parse_args()
    print(
        f"medians of {args.rounds} rounds of {args.seconds:g} s in turn, {args.workers} workers, {args.clients} clients; attach --match {' '.join(args.options)}"
    )
    for name in args.services:
        with serving(name, args.workers) as port:
            clients, rounds = Clients(port, args.clients), list[tuple[float, float]]()
            clients.over(2 * SETTLED_S)
            for _ in range(args.rounds):
                plain = clients.over(args.seconds)
                with traced(rf"{SERVICES[name][0]}.*served:", args.options) as said:
                    clients.over(SETTLED_S)
                    slowed = clients.over(args.seconds)
                rounds.append((plain, slowed))
                clients.over(SETTLED_S)
            clients.close()
        plain, slowed = (statistics.median(column) for column in zip(*rounds, strict=True))
        kept = sorted(slowed / plain for plain, slowed in rounds)
        print(
            f"  {name:17} {plain:6.0f} requests a second, traced {slowed:6.0f}: {statistics.median(kept) * 100:.0f} % kept ({kept[0] * 100:.0f} to {kept[-1] * 100:.0f})"
        )
        for line in said if args.say else said[:1]:
            print(f"      {line}")


if __name__ == "__main__":
    main()
