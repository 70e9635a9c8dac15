"""The tracer reads every event of an arena once, whenever it polls."""

import os
from pathlib import Path

import numpy as np
import pytest

from pytrace_ebpf.record.agent.agent_library import Library, agent_library
from pytrace_ebpf.record.agent.arena import CALLS, CHUNK_TABLE, CHUNKS_START, FREE, FULL, MAGIC, WRITING, Arena
from pytrace_ebpf.record.process.pinned import Descriptor
from tests.unit.agent_pythons import built

EVENTS = 256  # in a chunk
CHUNK_BYTES = 16 * EVENTS

pytestmark = built


class Writer:
    """The agent's side of an arena with one chunk."""

    def __init__(self, path: Path) -> None:
        dtypes = Library(agent_library()).dtypes
        path.touch()
        os.truncate(path, CHUNKS_START + CHUNK_BYTES)
        self.header = np.memmap(path, dtypes["arena"], "r+", 0, (1,))
        self.chunk = np.memmap(path, dtypes["chunk"], "r+", CHUNK_TABLE, (1,))
        self.events = np.memmap(path, dtypes["event"], "r+", CHUNKS_START, (EVENTS,))
        self.header["chunk_bytes"], self.header["chunks"], self.header["pid"], self.header["magic"] = CHUNK_BYTES, 1, 1, MAGIC
        self.reader = Arena(Descriptor(os.open(path, os.O_RDWR)), dtypes, CHUNK_BYTES)
        self.written = 0

    def take_chunk(self) -> None:
        assert self.chunk["state"] == FREE
        self.chunk["count"], self.chunk["order"] = 0, self.chunk["order"] + 1
        self.chunk["stream"], self.chunk["record_bytes"] = CALLS, self.events.itemsize
        self.chunk["state"] = WRITING

    def write(self, count: int) -> None:
        for _ in range(count):
            self.events["stamp_line"][self.chunk["count"]] = self.written
            self.chunk["count"] += 1
            self.written += 1

    def read(self) -> list[int]:
        pieces = self.reader.news()
        stamps = [int(stamp) for piece in pieces for stamp in self.reader.events(piece)["stamp_line"]]
        self.reader.give_back(pieces)
        return stamps


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "1.0.arena")


@pytest.mark.parametrize("size", [1, 5, EVENTS])
@pytest.mark.parametrize("looks_before_it_is_full", [False, True])
def test_a_chunk_that_is_used_again_is_read_from_its_start(writer: Writer, size: int, looks_before_it_is_full: bool) -> None:
    """A thread that ends leaves its chunk FULL: when the tracer had read all of it already it is freed without a piece."""
    seen = []
    for _ in range(3):
        writer.take_chunk()
        writer.write(size)
        if looks_before_it_is_full:
            seen += writer.read()
        writer.chunk["state"] = FULL
        seen += writer.read()
    assert seen == list(range(3 * size))
