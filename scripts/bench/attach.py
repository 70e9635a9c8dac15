"""What it takes to attach: CPU time of all own processes, and seconds, until the first event, sample or line, and in all; beside py-spy, VizTracer and memray.

Each attaches in turn to a busy program of its own for a second, on an idle machine and beside busy programs. CPU time is that of a control group, so the
kernel's share is in it, as its verifier's, and that of processes nobody waited for; what the traced program spends is not. How many processes there were
is by looks every few milliseconds.
Peers lie in the virtual environment that `--peers` names (py-spy, viztracer, memray; the last two load themselves into a program by gdb), whose Python runs
the program; without it they are left out. Quote medians and ratios; the times are this machine's.

    sudo scripts/bench/attach.py [--rounds 5] [--busy 20] [--peers VENV] [--python /usr/bin/python3.11] [--only agent,top] [--before CHECKOUT]
"""

import argparse
import contextlib
import dataclasses
import os
import pty
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytrace_ebpf
from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.trace.schema import CallKind

HERE = Path(__file__).parents[2]
SPINS = "spins_all_the_time"  # its name shows when `top` has figures
PROGRAM = f"import sys\ndef step(n): return n + 1\ndef {SPINS}():\n    n = 0\n    while True: n = step(n)\nprint('ready', flush=True)\n{SPINS}()"
BUSY = "while True: pass"
_LOOK_S = 0.004
_GIVE_UP_S = 90
_ESCAPES = re.compile(rb"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]")
_KEYS = ("cpu_first", "first", "cpu", "wall", "processes")


class Group:
    """A control group: what CPU time its processes took, and which there were."""

    def __init__(self) -> None:
        self._folders = [root / f"bench-{os.getpid()}" for root in _roots()]
        for folder in self._folders:
            folder.mkdir()
        self.looks: list[tuple[int, float]] = []  # monotonic ns, CPU seconds
        self.pids = set[int]()

    def enter(self) -> None:
        """Called in a child before it becomes a command."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def look(self) -> None:
        """Note what it has used until now."""
        self.pids.update(map(int, (self._folders[0] / "cgroup.procs").read_text().split()))
        self.looks.append((time.monotonic_ns(), self.used_s()))

    def used_s(self) -> float:
        """CPU seconds."""
        usage = self._folders[0] / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        return int((self._folders[0] / "cpu.stat").read_text().split()[1]) / 1e6

    def used_at_s(self, ts: int) -> float:
        """The same at a moment."""
        return next((used for at, used in self.looks if at >= ts), self.looks[-1][1])

    def remove(self) -> None:
        """End what is left in it."""
        for _ in range(100):
            left = (self._folders[0] / "cgroup.procs").read_text().split()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                for folder in self._folders:
                    if folder.exists():
                        folder.rmdir()
                return
            time.sleep(0.05)


def _roots() -> list[Path]:
    """Where control groups that count CPU time are: version 1's cpuacct, else version 2's."""
    first = Path("/sys/fs/cgroup/cpuacct")
    return [first if first.is_dir() else Path("/sys/fs/cgroup")]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to attach. words: the command, with {pid}, {out}; first: the monotonic ns of the first event in what it wrote; screen: it draws until it is left."""

    words: Sequence[str]
    first: Callable[[Path], int | None] = lambda _out: None
    screen: bool = False
    at_end: bool = False  # the answer is there when it ends
    checkout: Path = HERE


def _first_call(out: Path) -> int | None:
    events = pytrace_ebpf.open(out).events(["ts", "kind"])
    events = events[events["kind"] != CallKind.OPEN]
    return int(events["ts"].min()) if len(events) else None


def _first_sample(out: Path) -> int | None:
    samples = pytrace_ebpf.open(out).samples()
    return int(samples["ts"].min()) if len(samples) else None


def ways(peers: Path | None, checkouts: dict[str, Path]) -> dict[str, Way]:
    """All of them, by name."""
    found = dict[str, Way]()
    for name, checkout in checkouts.items():
        attach = [sys.executable, "-m", "pytrace_ebpf", "attach", "-q", "--pid", "{pid}", "--duration", "1", "-o", "{out}"]
        found |= {
            f"agent{name}": Way([*attach, "--source", "agent"], _first_call, checkout=checkout),
            f"usdt{name}": Way([*attach, "--source", "usdt"], _first_call, checkout=checkout),
            f"--sample{name}": Way([*attach, "--sample", "99"], _first_sample, checkout=checkout),
            f"top{name}": Way([sys.executable, "-m", "pytrace_ebpf", "top", "{pid}"], screen=True, checkout=checkout),
            f"dump{name}": Way([sys.executable, "-m", "pytrace_ebpf", "dump", "{pid}"], at_end=True, checkout=checkout),
        }
    if peers:
        spy, of = str(peers / "bin/py-spy"), str(peers / "bin")
        found |= {
            "py-spy record": Way([spy, "record", "-p", "{pid}", "-d", "1", "-f", "raw", "-o", "{out}"]),
            "py-spy dump": Way([spy, "dump", "--pid", "{pid}"], at_end=True),
            "VizTracer": Way([f"{of}/viztracer", "--attach", "{pid}", "-t", "1", "-o", "{out}.json"]),
            "memray": Way([f"{of}/memray", "attach", "-o", "{out}", "--duration", "1", "{pid}"]),
        }
    return found


@contextlib.contextmanager
def running(source: str, python: str) -> Iterator[int]:
    """A program that has begun; its pid."""
    with subprocess.Popen([python, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        if "ready" in source:
            assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def once(way: Way, python: str) -> dict[str, float | None] | str:
    """What one attach took (see _KEYS), None where that is not known; or why it did not attach."""
    with tempfile.TemporaryDirectory() as folder, running(PROGRAM, python) as pid:
        out, group = Path(folder) / "out", Group()
        try:
            return _took(way, [word.format(pid=pid, out=out) for word in way.words], out, group)
        except (PytraceError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            group.remove()


def _took(way: Way, words: list[str], out: Path, group: Group) -> dict[str, float | None] | str:
    ours, theirs = pty.openpty()
    seen, began = bytearray(), time.monotonic_ns()
    figures_at: list[int] = []
    environment = os.environ | {"PYTHONPATH": str(way.checkout), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled already, as where they are installed
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, cwd="/", env=environment, preexec_fn=group.enter, start_new_session=True
    )
    os.close(theirs)

    def read() -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                seen.extend(piece)
                if not figures_at and way.screen and SPINS.encode() in _ESCAPES.sub(b"", bytes(seen)):
                    figures_at.append(time.monotonic_ns())

    reader = threading.Thread(target=read)
    reader.start()
    left = False
    while process.poll() is None:
        group.look()
        if figures_at and not left:
            left = bool(os.write(ours, b"q"))
        if time.monotonic_ns() - began > _GIVE_UP_S * 1e9:
            process.kill()
            raise subprocess.TimeoutExpired(words, _GIVE_UP_S)
        time.sleep(_LOOK_S)
    ended = time.monotonic_ns()
    group.look()
    reader.join(1)
    os.close(ours)
    if process.returncode:
        return f"exit code {process.returncode}: {bytes(seen[-300:])!r}"
    first = figures_at[0] if figures_at else ended if way.at_end else way.first(out)
    return {
        "cpu_first": group.used_at_s(first) if first else None,
        "first": (first - began) / 1e9 if first else None,
        "cpu": group.used_s(),
        "wall": (ended - began) / 1e9,
        "processes": float(len(group.pids)),
    }


def rounds(number: int, chosen: dict[str, Way], python: str) -> dict[str, list[dict[str, float | None]]]:
    """All ways in turn, again and again; the first turn, in which programs may be compiled, does not count."""
    found: dict[str, list[dict[str, float | None]]] = {name: [] for name in chosen}
    refused = set[str]()
    for turn in range(number + 1):
        for name, way in chosen.items():
            took = once(way, python) if name not in refused else ""
            if isinstance(took, str):
                if took:
                    print(f"{name}: {took}", file=sys.stderr)
                refused.add(name) if not found[name] else None
            elif turn:
                found[name].append(took)
    return {name: each for name, each in found.items() if each}


def show(title: str, found: dict[str, list[dict[str, float | None]]]) -> None:
    """A table of medians."""
    print(
        f"\n{title}\n\n| | CPU to the first | seconds to the first | CPU in all | seconds in all | least - most | processes |\n|---|---|---|---|---|---|---|"
    )
    for name, took in found.items():
        cells = [_median([each[key] for each in took]) for key in _KEYS[:4]]
        walls = [each["wall"] or 0 for each in took]
        processes = _median([each["processes"] for each in took], "{:.0f}")
        print(f"| {name} | {' | '.join(cells)} | {min(walls):.2f} - {max(walls):.2f} | {processes} |", flush=True)


def _median(values: Sequence[float | None], form: str = "{:.2f}") -> str:
    known = [value for value in values if value is not None]
    return form.format(statistics.median(known)) if known else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=20, metavar="N", help="beside how many busy programs it is measured, too; 0: not")
    parser.add_argument("--peers", type=Path, metavar="VENV")
    parser.add_argument("--python", default="/usr/bin/python3.11", help="runs the program, where there are no peers")
    parser.add_argument("--only", help="names of ways, joined by commas")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="a checkout of another version, measured beside")
    args = parser.parse_args()
    chosen = ways(args.peers, {"": HERE} | ({" before": args.before.resolve()} if args.before else {}))
    if args.only:
        chosen = {name: way for name, way in chosen.items() if name in args.only.split(",")}
    python = str(args.peers / "bin/python") if args.peers else args.python
    for busy in dict.fromkeys((0, args.busy)):
        with contextlib.ExitStack() as stack:
            for _ in range(busy):
                stack.enter_context(running(BUSY, python))
            load = f"{os.getloadavg()[0]:.1f} processes wanted a core"
            title = f"Beside {busy} busy programs" if busy else "By itself"
            show(f"{title}; medians of {args.rounds} rounds in turn on {os.cpu_count()} cores ({load} before):", rounds(args.rounds, chosen, python))


if __name__ == "__main__":
    main()
