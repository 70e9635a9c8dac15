"""What attaching does to a web service that is busy: requests a second and what one takes, untraced and by each source.

The service and its clients, who wait for nothing but its answers, run on; the tracer is attached in turn by `--source
auto`, `usdt` and `agent`, or by what --ways says: `sample:HZ` and `py-spy:HZ` sample instead.
Quote the ratios; the times are this machine's. Where others use its cores too, trust those of the service's CPU time a request.

    scripts/bench/service.py [--python /usr/bin/python3.11] [--rounds 5] [--seconds 4] [--clients 4] [--ways untraced,auto,agent,sample:99,py-spy:99]
"""

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from children.orders import ITEMS

SERVICE = Path(__file__).parent / "children" / "shop.py"
ORDER = json.dumps(ITEMS).encode()
WAYS = ("untraced", "auto", "usdt", "agent")


class Clients:
    """Threads that ask and ask; keeps when each answer came and how long it took."""

    def __init__(self, pid: int, port: int, number: int) -> None:
        """`pid`, `port`: the service's."""
        self._cpu_clock = ~pid << 3 | 2  # CPUCLOCK_SCHED of a process
        self.answers: list[tuple[float, float]] = []
        for _ in range(number):
            threading.Thread(target=self._ask, args=(port,), daemon=True).start()

    def _ask(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            began = time.monotonic()
            try:
                connection.request("POST", "/", ORDER)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):  # the service has ended
                return
            self.answers.append((time.monotonic(), time.monotonic() - began))

    def over(self, seconds: float) -> tuple[float, float, float]:
        """(requests a second, median ms of one, ms of the service's CPU time of one) from now on, for so long."""
        began, cpu_ns = time.monotonic(), time.clock_gettime_ns(self._cpu_clock)
        time.sleep(seconds)
        ended, cpu_ns = time.monotonic(), time.clock_gettime_ns(self._cpu_clock) - cpu_ns
        took = [took for at, took in self.answers if began < at <= ended]
        if not took:
            return 0.0, float("inf"), float("inf")
        return len(took) / (ended - began), statistics.median(took) * 1e3, cpu_ns / len(took) / 1e6


class Tracer:
    """`pytrace-ebpf attach`, from its first line on until the end of the block; `none` without a source."""

    def __init__(self, pid: int, way: str, folder: str) -> None:
        self.said, self.process = "", None
        kind, _, rate = way.partition(":")
        if kind == "py-spy":
            words = ["py-spy", "record", "--pid", str(pid), "-r", rate, "-d", "3600", "-f", "raw", "-o", folder]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        elif kind != "untraced":
            what = ["--sample", rate] if kind == "sample" else ["--source", kind]
            words = ["-m", "pytrace_ebpf", "attach", "--pid", str(pid), *what, "-o", folder]
            self.process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Tracer":
        says = self.process and (self.process.stderr or self.process.stdout)
        if says:
            self.said = says.readline().rstrip()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.send_signal(signal.SIGINT)
            self.said += "\n" + "".join(text or "" for text in self.process.communicate()).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=WAYS)
    args = parser.parse_args()
    service = subprocess.Popen([args.python, SERVICE], stdout=subprocess.PIPE, text=True)
    assert service.stdout
    clients = Clients(service.pid, int(service.stdout.readline()), args.clients)
    clients.over(1.0)
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in args.ways}
    said = {}
    try:
        for _ in range(args.rounds):
            for way in args.ways:
                with tempfile.TemporaryDirectory() as folder, Tracer(service.pid, way, f"{folder}/trace") as tracer:
                    found[way].append(clients.over(args.seconds))
                said[way] = tracer.said
    finally:
        service.kill()
        service.wait()
    if "auto" in said:
        print(said["auto"].splitlines()[0])
    print(f"medians of {args.rounds} rounds of {args.seconds:g} s in turn, {args.clients} clients")
    for way, rounds in found.items():
        rate, took, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        kept, slower = (statistics.median(mine[at] / plain[at] for mine, plain in zip(rounds, found["untraced"], strict=True)) for at in (0, 2))
        lost = ", ".join(line.split("  ")[-1] for line in said[way].splitlines() if line.endswith(("lost", "LOST")))
        print(
            f"  {way:11} {rate:5.0f} requests a second ({kept * 100:.0f} % kept), {took:.0f} ms each, {cpu:.1f} ms of CPU ({slower:.1f} times)  {lost}"
        )


if __name__ == "__main__":
    main()
