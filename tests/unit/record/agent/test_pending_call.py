"""What is asked of a target before it gets a pending call is asked of memory that it may take away."""

from types import SimpleNamespace
from typing import cast

import pytest

from pytrace_ebpf.record.agent.inject.pending_call import _is_acting
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.target import Target


@pytest.mark.parametrize(("content", "acting"), [(bytes(4), False), (b"\1\0\0\0", True), (None, True)])
def test_who_has_taken_away_the_agents_memory_gets_none(content: bytes | None, acting: bool) -> None:
    def read(address: int, size: int) -> bytes:
        assert (address, size) == (0x1000, 4)
        if content is None:
            raise MemoryFault(address)
        return content

    target = cast(Target, SimpleNamespace(memory=SimpleNamespace(read=read)))
    assert _is_acting(target, {"pytrace_acting": 0x1000}) == acting
