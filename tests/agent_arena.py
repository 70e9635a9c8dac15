"""Reads an agent's arena as the tests need it: every event of every thread, in the order written."""

import mmap
import os
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent import inject
from pytrace_ebpf.record.agent.agent_library import Library
from pytrace_ebpf.record.agent.arena import (
    ACTIVE,
    ALLOCATIONS,
    CALLS,
    CHUNK_SIZE,
    CHUNK_TABLE,
    CHUNKS_START,
    FREE,
    FUNCTIONS_START,
    NAME,
    OPCODES,
    QUIET,
    REFUSED,
    VALUES,
)
from pytrace_ebpf.record.agent.leftovers import take
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.trace.schema import CallKind
from tests.conftest import PATIENCE_S

__all__ = ["ACTIVE", "AGENT", "ENTRY", "OPEN", "QUIET", "REFUSED", "RESUME", "Arena", "Session", "unbalanced"]

AGENT = Path(__file__).parents[1] / "probes" / "agent" / "agent.so"
ENTRY, OPEN, RESUME = CallKind.ENTRY.value, CallKind.OPEN.value, CallKind.RESUME.value
LINE, STANDS = CallKind.LINE.value, 3  # EVENT_STANDS of probes/agent/agent.h
EVENT = np.dtype([("stamp", "u8"), ("frame", "u4"), ("function", "u4"), ("kind", "u1"), ("line", "u4")])
RECORDS = {CALLS: "event", VALUES: "value", ALLOCATIONS: "allocations", OPCODES: "opcode"}
LAYOUT = Library(AGENT).dtypes if AGENT.exists() else {}


@dataclass(frozen=True)
class Function:
    """One function record."""

    file: str
    name: str
    qualname: str
    first_line: int
    flags: int


class Arena:
    """What an arena file holds: `header` (np.void), `chunks` of events (np.void each, in their order), `functions` and `names` by id, `threads`: tid -> array of EVENT,
    `values`, `allocations`: (head of the chunk, array of struct value, of struct allocations) each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.header = np.frombuffer(file.read(CHUNK_TABLE), LAYOUT["arena"], 1)[0]
            chunks = []
            for number in range(int(self.header["chunks"])):
                file.seek(CHUNK_TABLE + number * CHUNK_SIZE)
                head = np.frombuffer(file.read(CHUNK_SIZE), LAYOUT["chunk"], 1)[0]
                file.seek(CHUNKS_START + number * int(self.header["chunk_bytes"]))
                record = LAYOUT[RECORDS[int(head["stream"])]]
                events = np.frombuffer(file.read(record.itemsize * int(head["count"])), record)
                if head["state"] != FREE:
                    chunks.append((head, events))
            file.seek(0)  # functions were there before the events that name them, in a program that runs
            functions_end = int(np.frombuffer(file.read(CHUNK_TABLE), LAYOUT["arena"], 1)["functions_end"][0])
            file.seek(FUNCTIONS_START)
            self.functions, self.names = self._functions(file.read(functions_end - FUNCTIONS_START))
        chunks.sort(key=lambda chunk: int(chunk[0]["order"]))
        self.values = [(head, values) for head, values in chunks if head["stream"] == VALUES]
        self.allocations = [(head, records) for head, records in chunks if head["stream"] == ALLOCATIONS]
        self.opcodes = np.concatenate([np.empty(0, LAYOUT["opcode"]), *(records for head, records in chunks if head["stream"] == OPCODES)])
        chunks = [(head, events) for head, events in chunks if head["stream"] == CALLS]
        self.chunks = [head for head, _ in chunks]
        self.threads: dict[int, np.ndarray] = {}
        for head, events in chunks:
            tid = int(head["tid"])
            self.threads[tid] = np.concatenate([self.threads.get(tid, np.empty(0, EVENT)), _decoded(events)])

    @staticmethod
    def _functions(data: bytes) -> tuple[dict[int, Function], dict[int, str]]:
        functions, names, at = {}, {}, 0
        while at < len(data):
            size, number, first_line, flags = struct.unpack_from("<IIiI", data, at)
            file, name, qualname = data[at + 16 : at + size].split(b"\0")[:3]
            if first_line == -NAME:
                names[number] = file.decode()
            else:
                functions[number] = Function(file.decode(), name.decode(), (qualname or name).decode(), first_line, flags)
            at += size
        return functions, names

    def give_back(self, number: int) -> None:
        """Let the agent write to a chunk anew, as the tracer does once it has read it."""
        with self.path.open("r+b") as file:
            offset = CHUNK_TABLE + number * CHUNK_SIZE + LAYOUT["chunk"].fields["state"][1]
            os.pwrite(file.fileno(), FREE.to_bytes(4, "little"), offset)

    @property
    def events(self) -> np.ndarray:
        """All threads' events, one thread after the other."""
        return np.concatenate([np.empty(0, EVENT), *self.threads.values()])

    def counts(self, *kinds: int, qualified: bool = False) -> Counter[str]:
        """Events of these kinds, or entries and resumes, by "file:name:first line", as truth.py keys them: `qualified`, or from 3.11 on, by the qualified name."""
        ids, counts = np.unique(self.events["function"][np.isin(self.events["kind"], kinds or (ENTRY, RESUME))], return_counts=True)
        named = Counter[str]()
        for number, count in zip(ids.tolist(), counts.tolist(), strict=True):
            named[self._key(self.functions[number], qualified)] += count
        return named

    def _key(self, function: Function, qualified: bool = False) -> str:
        name = function.qualname if qualified or self.header["python"] >= 0x030B0000 else function.name
        return f"{function.file}:{name}:{function.first_line}"

    def lines(self, file: str) -> Counter[str]:
        """The lines that functions of `file` came to, as line_truth.py keys them."""
        counted = Counter[str]()
        events = self.events[self.events["kind"] == LINE]
        for number, line in zip(events["function"].tolist(), events["line"].tolist(), strict=True):
            function = self.functions[number]
            if function.file == file:
                counted[f"{function.name}:{function.first_line}:{line}"] += 1
        return counted

    def sites(self) -> Counter[str]:
        """The same by where they were called from, as truth.py --sites keys them; without those that no call was open at."""
        named = {number: self._key(each) for number, each in self.functions.items()}
        counted = Counter[str]()
        for events in self.threads.values():
            open_: list[int] = []
            for function, kind, line in zip(events["function"].tolist(), events["kind"].tolist(), events["line"].tolist(), strict=True):
                if kind not in (ENTRY, RESUME, OPEN):
                    if kind not in (LINE, STANDS):
                        open_.pop()
                    continue
                if open_ and kind != OPEN:
                    counted[f"{named[open_[-1]]}:{line} > {named[function]}"] += 1
                open_.append(function)
        return counted


def _decoded(events: np.ndarray) -> np.ndarray:
    rows = np.empty(len(events), EVENT)
    rows["stamp"] = events["stamp_line"] & 0xFFFFFFFFFFFF
    rows["frame"] = events["what"] & 0xFFFFFFFF
    rows["function"] = events["what"] >> 32 & 0xFFFFF
    rows["kind"] = events["what"] >> 52 & 7
    rows["line"] = (events["stamp_line"] >> 48) | (events["what"] >> 55 << 16)
    return rows


def unbalanced(events: np.ndarray) -> list[int]:
    """Positions of ends and lines that are not of the innermost open frame, of one thread's events."""
    stack, wrong = [], []
    for i, (frame, kind) in enumerate(zip(events["frame"].tolist(), events["kind"].tolist(), strict=True)):
        if kind in (ENTRY, RESUME, OPEN):
            stack.append(frame)
        elif kind in (LINE, STANDS):
            if not stack or stack[-1] != frame:
                wrong.append(i)
        elif not stack or stack.pop() != frame:
            wrong.append(i)
    return wrong


def assert_balanced(arena: "Arena") -> None:
    """Each thread's ends are of its innermost open frame."""
    for events in arena.threads.values():
        assert not unbalanced(events)


class Session:
    """A session directory as the tracer prepares it: the library, its options, and the lock that shows that the tracer is alive."""

    def __init__(self, directory: Path, **options: object) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        shutil.copy(AGENT, directory / "agent.so")
        chosen = {"clock": "tsc", "follow": 1, "wait_ms": 0, "arenas": directory} | options
        lines = [f"{key}={one}\n" for key, value in chosen.items() for one in (value if isinstance(value, list) else [value])]
        (directory / "options").write_text("".join(lines))
        self._lock = (directory / "lock").open("w")
        assert take(self._lock.fileno())

    @property
    def preloaded(self) -> dict[str, str]:
        """The environment that loads the agent into a program at its start."""
        return {**os.environ, "LD_PRELOAD": f"{self.directory}/agent.so"}

    def arenas(self) -> list[Arena]:
        """Every complete arena, oldest file first."""
        found = []
        for path in sorted(self.directory.glob("*.arena"), key=os.path.getmtime):
            with suppress(FileNotFoundError):  # the agent takes its files away when the tracer is gone
                if int.from_bytes(path.open("rb").read(8), "little"):
                    found.append(Arena(path))
        return found

    def wait(self, state: int, arenas: int = 1, seconds: float = 20) -> list[Arena]:
        """The arenas, once so many are in a state."""
        end, called = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() < end:
            if state == QUIET and time.monotonic() > called + 0.3:
                for arena in self.arenas():
                    self._call(arena)
                called = time.monotonic()
            reached = [arena for arena in self.arenas() if arena.header["state"] == state]
            if len(reached) >= arenas:
                return reached
            time.sleep(0.01)
        raise AssertionError(f"{[(a.header['state'], a.header['message']) for a in self.arenas()]} after {seconds} s")

    def leave_out(self, *names: str, everything: bool = False, look: Callable[[], object] | None = None) -> None:
        """Ask every process to leave out the functions of these names alone, or everything, and wait until it does; `look` has a thread of its own do that."""
        for arena in self.arenas():
            ids = [number for number, function in arena.functions.items() if function.name in names]
            with arena.path.open("r+b") as file, mmap.mmap(file.fileno(), CHUNK_TABLE) as header:
                place = {name: LAYOUT["arena"].fields[f"left_out{name}"][1] for name in ("", "_count", "_turn", "_done")}
                struct.pack_into(f"{len(ids)}I", header, place[""], *ids)
                struct.pack_into("I", header, place["_count"], 0xFFFFFFFF if everything else len(ids))
                (turn,) = struct.unpack_from("I", header, place["_turn"])
                struct.pack_into("I", header, place["_turn"], turn + 1)
                if look:
                    look()
                end, called = time.monotonic() + PATIENCE_S, 0.0
                while struct.unpack_from("I", header, place["_done"]) != (turn + 1,):
                    assert time.monotonic() < end
                    if time.monotonic() > called + 0.3:
                        self._call(arena)
                        called = time.monotonic()
                    time.sleep(0.001)

    @staticmethod
    def _call(arena: Arena) -> None:
        """The agent has no thread: where no Python runs a thread that waits is made to look."""
        with suppress(TargetError, HostError, OSError):
            inject.look(inspect(int(arena.header["pid"])), Descriptor(os.open(AGENT, os.O_RDONLY)))

    def command_stop(self) -> None:
        """Command every process to stop, and have the agents look."""
        for arena in self.arenas():
            with arena.path.open("r+b") as file, mmap.mmap(file.fileno(), CHUNK_TABLE) as header:
                offset = LAYOUT["arena"].fields["command"][1]
                header[offset : offset + 4] = b"\1\0\0\0"
            self._call(arena)

    def close(self) -> None:
        """The tracer is gone."""
        self._lock.close()
