"""Records the bytes anew, as root: PYTHONPATH=. python -m tests.golden.record [agent] [perf] [usdt_and_sched] [native].

Read what changed in the expected tables before it is committed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.native import layers, tensors
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.scheduling import perf_switches, sched
from pytrace_ebpf.record.session import Session
from pytrace_ebpf.record.usdt import calls as usdt_calls
from pytrace_ebpf.record.usdt.probes import UsdtProbes
from tests.agent_arena import LAYOUT, RECORDS
from tests.agent_arena import Session as AgentSession
from tests.golden.replay import REPLAYS, plain

HERE = Path(__file__).parent
PYTHON = ["/usr/bin/python3.11", "-I", "-S", "-c"]
# Calls, a generator, an exception, a thread that sleeps.
PROGRAM = """
import sys, threading, time
def inner(number): return number
def outer(): return [inner(number) for number in (1, 2, 3)]
def counts():
    yield 1
    yield 2
def fails(): raise ValueError
def sleeps(): time.sleep(0.02)
def work():
    outer()
    list(counts())
    try: fails()
    except ValueError: pass
    thread = threading.Thread(target=sleeps)
    thread.start()
    thread.join()
def main():
    print("ready", flush=True)
    sys.stdin.readline()
    work()
main()
"""
# A value of every kind that there is without a library.
GIVEN = r"""
def gives(one): return one
def given(*rest, text="\u00e9\ud800", password="x", cut=b"\0'" * 100, **more):
    return lambda: text
given(None, True, -(1 << 70), 1 << 2000, 1.5, b"", [1], {2: 3}, {4}, KeyError("5"), given, more=range(6))
for one in (None, True, -(1 << 70), 1 << 2000, 1.5, b"", [1], {2: 3}, {4}, KeyError("5"), given): gives(one)
"""
taken: dict[str, np.ndarray] = {}
seen: Counter[str] = Counter()


def take(name: str, records: np.ndarray) -> None:
    """Keep a batch, where it is not empty or goes with others."""
    taken[f"{name}.{seen[name]}"] = records.copy()
    seen[name] += 1


def tapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose first argument is kept."""

    def call(records: np.ndarray, *rest: Any) -> Any:
        if len(records):
            take(name, records)
        return function(records, *rest)

    return call


def keep(name: str) -> None:
    """Write what was taken, and the tables that are made of it."""
    np.savez_compressed(HERE / f"{name}.npz", **taken)
    with tempfile.TemporaryDirectory() as folder:
        made = plain(REPLAYS[name](np.load(HERE / f"{name}.npz"), Path(folder)))
    lines = {table: [json.dumps(row) for row in rows] for table, rows in made.items()}
    body = ",\n".join(f' "{table}": [\n  ' + ",\n  ".join(rows) + "\n ]" for table, rows in lines.items())
    (HERE / f"{name}.json").write_text("{\n" + body + "\n}\n")
    print(name, (HERE / f"{name}.npz").stat().st_size, {table: len(rows) for table, rows in made.items()})
    taken.clear()
    seen.clear()


def attach(command: list[str], options: Options) -> None:
    """Record a program that says ready and waits for a line."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "ready\n"
        session = Session(options, [])
        session.start(process.pid)
        threading.Timer(0.3, lambda: process.communicate("\n")).start()
        session.run(lambda: False, lambda _: None)
        session.finish()
        session.close()


def scheduling(folder: Path) -> None:
    columns = sched.sched_columns
    sched.sched_columns = tapped("sched", columns)
    attach([*PYTHON, PROGRAM], Options(folder / "sched", "usdt"))
    sched.sched_columns = columns
    keep("sched")


def usdt(folder: Path) -> None:
    drain_calls, drain_sites, drain_functions = UsdtProbes.drain_calls, UsdtProbes.drain_sites, UsdtProbes.drain_functions
    columns = usdt_calls.tables.call_columns

    def calls(self: UsdtProbes, how: Callable[..., Any]) -> Any:
        def copied(records: np.ndarray) -> Any:
            take("calls", records)
            return how(records)

        return drain_calls(self, copied)

    def sites(self: UsdtProbes) -> list[np.ndarray]:
        short, long = drain_sites(self)
        take("sites", short)
        return [short, long]

    def functions(self: UsdtProbes) -> np.ndarray:
        take("functions", records := drain_functions(self))
        return records

    UsdtProbes.drain_calls, UsdtProbes.drain_functions = calls, functions  # type: ignore[method-assign,assignment]
    UsdtProbes.drain_sites = sites  # type: ignore[method-assign]
    attach([*PYTHON, PROGRAM], Options(folder / "usdt", "usdt"))
    UsdtProbes.drain_calls, UsdtProbes.drain_functions = drain_calls, drain_functions  # type: ignore[method-assign]
    UsdtProbes.drain_sites = drain_sites  # type: ignore[method-assign]
    usdt_calls.tables.call_columns = columns
    empty = [name for name, records in taken.items() if not len(records)]
    both = [name.partition(".")[2] for name in empty if name.startswith("calls") and f"functions.{name.partition('.')[2]}" in empty]
    for number in both:
        del taken[f"calls.{number}"], taken[f"functions.{number}"], taken[f"sites.{number}"]
    keep("usdt")


def agent(folder: Path) -> None:
    options = {"include": ["<string>"], "args": ["<string>.gives", "<string>.counts", "<string>.fails", "<string>.given"], "redact": ["password"]}
    session = AgentSession(folder / "agent", clock="monotonic", arena_bytes=1 << 18, chunk_records=256, memory=1, **options)
    subprocess.run([*PYTHON, PROGRAM + GIVEN], env=session.preloaded, input="\n", text=True, check=True, stdout=subprocess.DEVNULL)
    (path,) = [each for each in (folder / "agent").iterdir() if each.stat().st_size > arena.CHUNKS_START]
    with path.open("rb") as file:
        header = np.frombuffer(os.pread(file.fileno(), LAYOUT["arena"].itemsize, 0), LAYOUT["arena"], 1)
        used, size = int(header["chunks"][0]), int(header["chunk_bytes"][0])
        raw = os.pread(file.fileno(), used * arena.CHUNK_SIZE, arena.CHUNK_TABLE)
        table = np.ndarray((used,), LAYOUT["chunk"], raw, strides=(arena.CHUNK_SIZE,))
        whole = np.dtype({**_fields(LAYOUT["chunk"]), "itemsize": arena.CHUNK_SIZE})
        take("header", header)
        take("table", np.frombuffer(raw, whole))
        end = int(header["functions_end"][0]) - arena.FUNCTIONS_START
        take("functions", np.frombuffer(os.pread(file.fileno(), end, arena.FUNCTIONS_START), np.uint8))
        for number in range(used):
            count = int(table["count"][number])
            record = LAYOUT[RECORDS[int(table["stream"][number])]]
            take("chunk", np.frombuffer(os.pread(file.fileno(), record.itemsize * count, arena.CHUNKS_START + number * size), record))
        taken["arena_bytes.0"] = np.array([os.fstat(file.fileno()).st_size - arena.CHUNKS_START])
    keep("agent")


def _fields(dtype: np.dtype) -> dict[str, Any]:
    fields: Any = dtype.fields
    return {
        "names": list(dtype.names or ()),
        "formats": [fields[name][0] for name in dtype.names or ()],
        "offsets": [fields[name][1] for name in dtype.names or ()],
    }


def perf(folder: Path) -> None:
    drain = perf_switches._Ring.drain

    def drained(self: Any) -> bytes:
        raw = drain(self)
        if raw:
            take("perf", np.frombuffer(raw, np.uint8))
        return raw

    perf_switches._Ring.drain = drained  # type: ignore[method-assign]
    source = perf_switches.PerfSwitches()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(reader, 1)
        os.execv(PYTHON[0], [*PYTHON, PROGRAM.replace("sys.stdin.readline()", "None").replace('print("ready", flush=True)', "None")])
    source.add(pid)
    os.write(writer, b"x")
    os.waitpid(pid, 0)
    source.drain()
    source.close()
    keep("perf")


def native(folder: Path) -> None:
    from tests.bpf.test_native import LIBRARIES

    source = Path(__file__).parents[1] / "bpf" / "native_standin.c"
    for name, part in LIBRARIES.items():
        options = ["-O1", "-w", "-fPIC", "-shared", "-fno-optimize-sibling-calls", f"-D{part}"]
        subprocess.run(["cc", *options, "-o", str(folder / name), str(source)], check=True)
    columns = layers.call_columns, tensors.argument_columns, layers._error_columns
    layers.call_columns = tapped("calls", columns[0])
    tensors.argument_columns = tapped("arguments", columns[1])
    layers._error_columns = tapped("errors", columns[2])
    program = str(Path(__file__).parents[1] / "targets" / "native.py")
    attach([PYTHON[0], program, "--wait", str(folder), "1"], Options(folder / "native", "usdt", streams={"layers": ("operator", "blas", "cuda")}))
    layers.call_columns, tensors.argument_columns, layers._error_columns = columns
    keep("native")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for record in (agent, perf, scheduling, usdt, native):
            if record.__name__ in (sys.argv[1:] or record.__name__):
                record(Path(scratch))
