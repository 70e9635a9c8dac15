"""Whatever bytes an ELF file has, it is read, or refused in one sentence; what was found is in corpus/elf."""

import io
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython.layout import is_free_threaded, layout_for
from pytrace_ebpf.record.native.libraries import find_blas
from pytrace_ebpf.record.native.probed_library import symbol_offsets
from pytrace_ebpf.record.parsing import elf
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.usdt.probes import plan

EXAMPLES = int(os.environ.get("PYTRACE_FUZZ", "300"))
fuzzed = settings(max_examples=EXAMPLES, deadline=None, derandomize="PYTRACE_FUZZ" not in os.environ, suppress_health_check=list(HealthCheck))
CORPUS = sorted((Path(__file__).parent / "corpus" / "elf").iterdir())
SMALL = next(path for path in CORPUS if path.name == "small").read_bytes()
NUMBERS = (0, 1, 2, 7, 0x7F, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 47, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
READERS: tuple[Callable[[BinaryIO], Any], ...] = (
    elf.read_binary,
    elf.needed,
    elf.read_functions,
    lambda file: elf.hidden_functions(file, ["function", ""]),
    lambda file: elf.section(file, ".dynstr"),
    lambda file: symbol_offsets(file, ".*"),
    lambda file: find_blas(file, elf.read_functions(file)),
)


def _headers() -> list[int]:
    """Places of numbers that a reader goes by: the file's header, its segments' and sections', notes, dynamic tags, symbols."""
    segments, sections = struct.unpack_from("<QQ", SMALL, 32)
    count = struct.unpack_from("<H", SMALL, 60)[0]
    tables = [(row[4], row[5]) for row in (struct.unpack_from("<IIQQQQIIQQ", SMALL, sections + at * 64) for at in range(count))]
    places = [*range(0, 64, 2), *range(segments, segments + 56 * struct.unpack_from("<H", SMALL, 56)[0], 4), *range(sections, len(SMALL), 4)]
    return places + [place for offset, size in tables for place in range(offset, min(offset + size, len(SMALL)), 4)]


mutations = st.lists(
    st.tuples(st.sampled_from(_headers()), st.sampled_from("BHIQ"), st.sampled_from(NUMBERS) | st.integers(0, len(SMALL))), max_size=12
)


def read(content: bytes) -> None:
    """Through the functions that read a live target's files, to what the tracer makes of it. Fails for anything but a result or a sentence."""
    for reader in READERS:
        try:
            value = reader(io.BytesIO(content))
        except ValueError as error:
            assert type(error) is ValueError and len(str(error)) < 300
            continue
        if isinstance(value, elf.Binary):
            with suppress(ValueError):  # numbers of more than 64 bits
                assert decode(elf.Binary, encode(value)) == value
            _use(value)


def _use(binary: elf.Binary) -> None:
    is_free_threaded(binary.debug_offsets)
    if binary.version and (layout := layout_for(binary.version, binary.debug_offsets)):
        with suppress(ValueError, TargetError):
            plan(binary, layout)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_corpus(path: Path) -> None:
    read(path.read_bytes())


def test_the_small_file_is_an_interpreter() -> None:
    binary = elf.read_binary(io.BytesIO(SMALL))
    assert binary.version == (3, 11, 2)
    assert set(binary.probes) == {"function__entry", "function__return", "line"}


@fuzzed
@given(mutations, st.integers(0, len(SMALL)) | st.none())
@example([], None)
def test_mutations_of_the_small_file(changes: list[tuple[int, str, int]], end: int | None) -> None:
    content = bytearray(SMALL)
    for at, kind, number in changes:
        size = struct.calcsize(f"<{kind}")
        content[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "little")
    read(bytes(content[:end]))


@fuzzed
@given(st.binary(max_size=1024), st.sampled_from([(3, 13, 0), (3, 14, 0), (3, 15, 0)]))
def test_debug_offsets(offsets: bytes, version: tuple[int, int, int]) -> None:
    layout_for(version, b"xdebugpy" + offsets.ljust(1016, b"\xff"))


@fuzzed
@given(st.text(max_size=100) | st.from_regex(r"-?\d@-?\d*\(%\w+\)", fullmatch=True))
def test_operands_of_probes(text: str) -> None:
    for argument in elf.parse_arguments(text):
        assert argument.register is None or argument.register in elf.PT_REGS
