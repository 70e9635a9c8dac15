"""Finding what injects the agent in a process that ends meanwhile, or whose memory cannot be read."""

import os
from typing import NoReturn

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.inject.mapped_library import loader
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target, inspect


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Target:
    """This process, none of whose memory can be read."""
    target = inspect(os.getpid())

    def read(address: int, size: int) -> NoReturn:
        raise MemoryFault(f"address {address:#x} is not in memory")

    monkeypatch.setattr(target.memory, "read", read)
    return target


def test_a_libc_that_cannot_be_read_is_one_sentence(unreadable: Target) -> None:
    with pytest.raises(TargetError, match=f"the libc of process {os.getpid()} cannot be read, so no agent can be loaded into it: address"):
        loader(unreadable)


def test_a_process_that_ended_since_its_mappings_were_read_has_ended(unreadable: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = [unreadable.process.read("maps"), b""]
    monkeypatch.setattr(unreadable.process, "read", lambda name: maps.pop(0))
    with pytest.raises(ProcessLookupError, match="has ended"):
        loader(unreadable)
