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
from contextlib import contextmanager, suppress
from ctypes import CDLL
from pathlib import Path

import psutil
from children.orders import ITEMS

CHILDREN = Path(__file__).parent / "children"
CLIENTS = CHILDREN / "asking.py"
SERVICES = {
    "gunicorn-sync": ["gunicorn", "--worker-class", "sync", "served:wsgi"],
    "gunicorn-gthread": ["gunicorn", "--worker-class", "gthread", "--threads", "4", "served:wsgi"],
    "uvicorn": ["uvicorn", "--no-access-log", "--log-level", "warning", "served:asgi"],
}
PR_SET_PDEATHSIG = 1
SETTLED_S = 1.0  # of each turn, that does not count: a tracer that begins, or one that has just ended


def ends_with_its_creator() -> None:
    """Whatever ends this process: the kernel asks a master to end then, which asks its workers; clients and the tracer are asked likewise."""
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def serving(name: str, workers: int) -> Iterator[tuple[int, psutil.Process]]:
    """A service that answers; yields its port and its master."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module, *words = SERVICES[name]
    where = ["--bind", f"127.0.0.1:{port}"] if module == "gunicorn" else ["--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", module, "--workers", str(workers), *where, *words]
    service = subprocess.Popen(
        command,
        cwd=CHILDREN,
        env=os.environ | {"PYTHONPATH": str(CHILDREN)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=ends_with_its_creator,
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
        yield port, psutil.Process(service.pid)
    finally:
        service.terminate()
        with suppress(subprocess.TimeoutExpired):
            service.wait(10)
        with suppress(ProcessLookupError):  # workers that their master has left behind
            os.killpg(service.pid, signal.SIGKILL)
        service.wait()


class Clients:
    """A process that asks and asks."""

    def __init__(self, port: int, number: int, master: psutil.Process) -> None:
        self._master, self._service = master, dict[int, psutil.Process]()
        self._process = subprocess.Popen(
            [sys.executable, CLIENTS, str(port), str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        self._said(json.dumps(ITEMS))

    def over(self, seconds: float) -> tuple[float, float]:
        """(requests a second, ms of the service's CPU time of one) from now on, for so long."""
        began, before, used = time.monotonic(), int(self._said("")), self._cpu_s()
        time.sleep(seconds)
        answered = max(1, int(self._said("")) - before)
        return answered / (time.monotonic() - began), (self._cpu_s() - used) / answered * 1e3

    def _cpu_s(self) -> float:
        for each in self._master.children(recursive=True):  # the master answers, for a worker, before there is one
            self._service.setdefault(each.pid, each)
        return sum(each.cpu_times().user + each.cpu_times().system for each in (self._master, *self._service.values()))

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
        tracer = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True, preexec_fn=ends_with_its_creator)
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it began
    print(
        f"medians of {args.rounds} rounds of {args.seconds:g} s in turn, {args.workers} workers, {args.clients} clients; attach --match {' '.join(args.options)}"
    )
    for name in args.services:
        with serving(name, args.workers) as (port, master):
            clients, rounds = Clients(port, args.clients, master), list[tuple[tuple[float, float], tuple[float, float]]]()
            clients.over(2 * SETTLED_S)
            for _ in range(args.rounds):
                plain = clients.over(args.seconds)
                with traced(rf"{SERVICES[name][0]}.*served:", args.options) as said:
                    clients.over(SETTLED_S)
                    slowed = clients.over(args.seconds)
                rounds.append((plain, slowed))
                clients.over(SETTLED_S)
            clients.close()
        (plain, alone), (slowed, beside) = (tuple(map(statistics.median, zip(*column, strict=True))) for column in zip(*rounds, strict=True))
        kept = sorted(traced_[0] / plain_[0] for plain_, traced_ in rounds)
        dearer = statistics.median(traced_[1] / plain_[1] for plain_, traced_ in rounds)
        print(
            f"  {name:17} {plain:5.0f} requests a second, traced {slowed:5.0f}: {statistics.median(kept) * 100:.0f} % kept ({kept[0] * 100:.0f} to "
            f"{kept[-1] * 100:.0f}); CPU time of one {alone:.2f} and {beside:.2f} ms ({dearer:.2f} times)"
        )
        for line in said if args.say else said[:1]:
            print(f"      {line}")


if __name__ == "__main__":
    main()
