"""What recording costs the service of run.py: answers a second untraced, and attached to by the agent without and with what clients are asked for;
and what share of the CPU time the trace says that was. As root:

scripts/service/cost.py [--rounds 3] [--seconds 6]
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from backends import Backends, set_up
from run import OURS, WARM_S, Service

WAYS = {"untraced": None, "--clients none": ("--clients", "none"), "as it comes": ()}
LOAD = {"/item": 4, "/listing": 2, "/slot": 1}


def rates(service: Service, way: tuple[str, ...] | None, seconds: float, folder: str) -> tuple[float, float, float]:
    """Answers a second to /item, CPU time of the workers of each, ms, and the share of it that tracing cost, as the trace says."""
    tracer = None
    if way is not None:
        words = [*OURS, "attach", "--pid", str(service.process.pid), "--source", "agent", *way, "-o", folder]
        tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr
        tracer.stderr.readline()
    time.sleep(WARM_S)
    before, cpu, began = sum(service.answered()), _cpu_ns(service), time.monotonic()
    time.sleep(seconds)
    answers, cpu, took = sum(service.answered()) - before, _cpu_ns(service) - cpu, time.monotonic() - began
    stated = 0.0
    if tracer:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
        cost = json.loads((Path(folder) / "manifest.json").read_text())["cost"]
        stated = cost["spent_ns"] / cost["cpu_ns"]
    return answers / took, cpu / answers / 1e6, stated


def _cpu_ns(service: Service) -> int:
    return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in service.workers)  # CPUCLOCK_SCHED of a process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    set_up()
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="pytrace-service-") as folder, Backends(Path(folder)) as backends, Service(backends, "shop") as service:
        service.ask(LOAD)
        time.sleep(WARM_S)
        for number in range(args.rounds):
            for way, words in WAYS.items():
                found[way].append(rates(service, words, args.seconds, f"{folder}/{way.replace(' ', '')}-{number}"))
    for way, rounds in found.items():
        answers, cpu, stated = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"{way:16} {answers:7.0f} answers a second, {cpu:.3f} ms of CPU time each, stated {stated * 100:.0f} %   {[round(each[0]) for each in rounds]}"
        )


if __name__ == "__main__":
    main()
