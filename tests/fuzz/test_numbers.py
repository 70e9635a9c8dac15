"""What root reads of a process by itself are numbers at known places: whatever they are, there is an answer that the kernel half takes."""

import os
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytrace_ebpf.record.cpython.gil import locate
from pytrace_ebpf.record.cpython.layout import table_layout
from pytrace_ebpf.record.process.memory import Memory, Numbered
from pytrace_ebpf.record.process.target import Target
from tests.fuzz.test_memory import circles, fuzzed, memory_of, versions


def of(memory: int, runtime: int, **known: Any) -> Target:
    """A process with such memory, of which nothing else is looked at."""
    here: Any = {"process": SimpleNamespace(memory=Memory(1, Numbered(memory))), "pid": os.getpid(), "runtime": runtime, **known}
    missing: Any = {name: None for name in Target.__dataclass_fields__ if name not in here}
    return Target(**missing | here)


def answered(content: bytes, version: tuple[int, int], runtime: int, free_threaded: bool) -> None:
    memory = memory_of(content)
    try:
        target = of(memory, runtime, layout=table_layout(version, free_threaded), python_version=version, free_threaded=free_threaded)
        first, end = target.gil_range()
        assert 0 <= first <= end < 1 << 64
        assert target.interpreters() >= 0 and target.gil_is_on() in (True, False) and target.is_initialized() in (True, False)
        path = locate(target)
        assert path is None or all(0 <= number < 1 << 64 for number in astuple(path))
    finally:
        os.close(memory)


@fuzzed
@given(circles, versions, st.integers(8, 4096))
def test_words_that_lead_in_circles(content: bytes, version: tuple[int, int], runtime: int) -> None:
    answered(content, version, runtime, False)


@fuzzed
@given(circles, st.sampled_from([(3, 13), (3, 14)]), st.integers(8, 4096))
def test_of_a_python_without_a_gil(content: bytes, version: tuple[int, int], runtime: int) -> None:
    answered(content, version, runtime, True)


@fuzzed
@given(st.binary(max_size=4096), versions, st.integers(0, (1 << 47) - 1))
def test_any_bytes(content: bytes, version: tuple[int, int], runtime: int) -> None:
    answered(content, version, runtime, False)
