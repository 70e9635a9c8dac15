"""Whatever an interpreter's memory holds, walking its frames and reading its code objects ends, with what was read."""

import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytrace_ebpf.record.cpython.frames import CodeInfo, walk_codes, walk_frames
from pytrace_ebpf.record.cpython.layout import layout_for
from pytrace_ebpf.record.parsing.shape import decode, encode

EXAMPLES = int(os.environ.get("PYTRACE_FUZZ", "100"))
fuzzed = settings(max_examples=EXAMPLES, deadline=None, derandomize="PYTRACE_FUZZ" not in os.environ, suppress_health_check=list(HealthCheck))
SIZE = 64 << 10
VERSIONS = [(3, minor) for minor in range(8, 16)]
TID = 4242


def filled(words: list[int]) -> bytes:
    """SIZE bytes of these words, again and again."""
    piece = struct.pack(f"<{len(words)}Q", *words)
    return (piece * (SIZE // len(piece) + 1))[:SIZE]


# Memory that is worth walking: most words are small numbers or lead somewhere in it.
circles = st.lists(st.integers(0, SIZE) | st.sampled_from([0, 1, 2, 3, TID, 0x20, 0x64, 1 << 47, (1 << 64) - 1]), min_size=16, max_size=128).map(
    filled
)
versions = st.sampled_from(VERSIONS)


def memory_of(content: bytes) -> int:
    """A file in the place of /proc/PID/mem: an address is an offset in it."""
    memory = os.memfd_create("memory")
    os.write(memory, content)
    return memory


def walk(version: tuple[int, int], content: bytes, runtime: int) -> None:
    layout, memory = layout_for(version), memory_of(content)
    given = {
        "kept": [],
        "pid": 1,
        "layout": encode(layout),
        "runtime": runtime,
        "seconds": 1.0,
        "everywhere": True,
        "tids": [[TID, TID], [2, 2]],
        "addresses": list(range(8, 4096, 104)),
    }
    try:
        stacks = decode(dict[str, bytes], walk_frames(given, [memory]))
        assert set(stacks) <= {str(TID), "2"}
        assert all(raw and len(raw) % 16 == 0 for raw in stacks.values())
        infos = decode(list[CodeInfo | None], walk_codes(given, [memory]))
        assert len(infos) <= len(given["addresses"])  # type: ignore[arg-type]
    finally:
        os.close(memory)


@fuzzed
@given(circles, versions, st.integers(8, 4096))
def test_words_that_lead_in_circles(content: bytes, version: tuple[int, int], runtime: int) -> None:
    walk(version, content, runtime)


@fuzzed
@given(st.binary(max_size=4096), versions, st.integers(0, (1 << 64) - 1))
def test_any_bytes(content: bytes, version: tuple[int, int], runtime: int) -> None:
    walk(version, content, runtime)


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@fuzzed
@given(st.binary(min_size=8, max_size=200), st.integers(0, 255), st.integers(0, (1 << 64) - 1))
def test_names_of_a_code_object(version: tuple[int, int], text: bytes, state: int, length: int) -> None:
    layout = layout_for(version)
    assert layout is not None
    code, type_object, name, string = 4096, 256, 512, 8192
    memory = bytearray(16384)
    struct.pack_into("<QQ", memory, code, 1, type_object)
    struct.pack_into("<Q", memory, type_object + 24, name)
    memory[name : name + 5] = b"code\0"
    for place in (layout.code_file, layout.code_name, layout.code_qualname or layout.code_name):
        struct.pack_into("<Q", memory, code + place, string)
    struct.pack_into("<Q", memory, string + layout.string_length, length)
    struct.pack_into("<I", memory, string + layout.string_state, state)
    memory[string + layout.string_data : string + layout.string_data + len(text)] = text
    descriptor = memory_of(memory)
    try:
        said = walk_codes({"pid": 1, "kept": [], "layout": encode(layout), "addresses": [code]}, [descriptor])
        (info,) = decode(list[CodeInfo | None], said)
        assert info is None or info.file.encode().decode() == info.name
    finally:
        os.close(descriptor)
