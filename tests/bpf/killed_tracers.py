"""Attaches to one process again and again and kills the tracer at a random moment each time; reports the effects as JSON.

killed_tracers.py KIND SOURCE KILLS SEED PYTHON [WORD...]

Run it in a mount namespace of its own: it puts empty file systems where tracers leave things, to see what they leave.
It is one process without threads, so that a tracer can be forked off that has imported everything already.
"""

import json
import os
import random
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pytrace_ebpf.cli.main import main
from pytrace_ebpf.record import session  # noqa: F401 - what a tracer takes longest to import
from pytrace_ebpf.record.process.target import inspect

REPOSITORY = Path(__file__).parents[2]
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
RECORDS_S = 0.25
NOBODY = 65534
# Each checks its own work, and exits with 0 at the end of its input.
BEGINNING = """
import select, sys, threading, time
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def ended(seconds):
    return bool(select.select([0], [], [], seconds)[0])
print("ready", flush=True)
"""
KINDS = {
    "busy": "while not ended(0):\n    assert fib(12) == 144\n",
    "idle": "sys.stdin.read()\nassert fib(12) == 144\n",
    "threads": """
stop = []
def work():
    while not stop:
        assert fib(10) == 55
        time.sleep(0.001)
workers = [threading.Thread(target=work) for _ in range(8)]
for worker in workers: worker.start()
while not ended(1): pass
stop.append(True)
for worker in workers: worker.join()
""",
}


def tracer(*words: str) -> int:
    """Fork a tracer off; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    os._exit(main(words))


def attach(pid: int, source: str, number: int) -> int:
    return tracer("attach", "--pid", str(pid), "--source", source, "--duration", str(RECORDS_S), "-o", f"/tmp/trace{number}")


def raised(pid: int) -> int:
    """How many semaphores of the process's probes are raised."""
    target = inspect(pid)
    addresses = {p.semaphore_vaddr + target.bias for ps in target.binary.probes.values() for p in ps if p.semaphore_vaddr}
    return sum(struct.unpack("<H", target.memory.read(address, 2))[0] != 0 for address in addresses)


def arenas(pid: int) -> int:
    return sum(".arena" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


def settled(pid: int) -> dict[str, int]:
    """What is left in the process a few seconds later."""
    deadline = time.monotonic() + 60
    while True:
        left = {"semaphores": raised(pid), "agents": arenas(pid)}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def left_behind(pid: int) -> list[str]:
    """Where the tracer may leave files, and where the process sees them."""
    roots = {Path("/").stat().st_ino: "/", Path(f"/proc/{pid}/root").stat().st_ino: f"/proc/{pid}/root"}
    return [str(path) for root in roots.values() for place in PLACES for path in Path(f"{root}{place}").glob("pytrace-ebpf-*")]


def closed_folder(file: Path) -> list[str]:
    """The outermost folder of a file that other users may not enter, if there is one."""
    return [str(folder) for folder in reversed(file.parents) if not folder.stat().st_mode & stat.S_IXOTH][:1]


def hide(places: Iterable[str], shown: Iterable[Path]) -> None:
    """Mount an empty folder for all users over each of the places, and in them again what is to be shown."""
    folders = {folder: os.open(folder, os.O_PATH) for folder in shown}
    for place in places:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", place], check=True)
    for folder, descriptor in folders.items():
        if not folder.exists():
            folder.mkdir(parents=True)
            subprocess.run(["mount", "-c", "--bind", f"/proc/{os.getpid()}/fd/{descriptor}", str(folder)], check=True)


def kill_many(kind: str, source: str, kills: int, seed: int, python: list[str]) -> dict[str, object]:
    here = len(python) == 1  # and not in another root
    interpreter = Path(python[0]).resolve()
    hide([*PLACES, *(closed_folder(interpreter) if here else [])], [REPOSITORY, interpreter.parents[1]])
    target = subprocess.Popen(
        [*python, "-c", BEGINNING + KINDS[kind]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if here else {}),
    )  # fmt: skip
    assert target.stdin and target.stdout and target.stdout.readline() == b"ready\n"
    began = time.monotonic()
    whole = os.waitstatus_to_exitcode(os.waitpid(attach(target.pid, source, 0), 0)[1])
    whole_s = time.monotonic() - began
    moments = random.Random(seed)
    killed = 0
    for number in range(1, kills + 1):
        pid = attach(target.pid, source, number)
        time.sleep(moments.uniform(0, whole_s))
        os.kill(pid, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    ends_early = target.poll()
    left = settled(target.pid) if ends_early is None and kind != "idle" else {}
    after = os.waitstatus_to_exitcode(os.waitpid(attach(target.pid, source, kills + 1), 0)[1])  # the next start of a command
    if ends_early is None and kind == "idle":  # where no Python runs the next recording ends those before
        left = settled(target.pid)
    files = left_behind(target.pid) if target.poll() is None else []
    target.stdin.close()
    return {
        "whole": whole, "killed": killed, "ends_early": ends_early, "after": after, **left,
        "exit_code": target.wait(300), "files": files,
    }  # fmt: skip


if __name__ == "__main__":
    kind, source, kills, seed, *python = sys.argv[1:]
    print(json.dumps(kill_many(kind, source, int(kills), int(seed), python)))
