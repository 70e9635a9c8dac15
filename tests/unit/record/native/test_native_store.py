"""What was found in a library is kept for the next time, for that very file and no other."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytrace_ebpf.record.native import findings
from pytrace_ebpf.record.native.probed_library import Gemm, Native
from pytrace_ebpf.record.native.signature import How, TensorArgument
from pytrace_ebpf.record.process.pinned import Descriptor

NATIVES = [
    Native(
        "operator",
        "aten::cat",
        "aten::cat",
        "<operator>",
        "/old/lib.so",
        16,
        (17, 30),
        (TensorArgument(1, How.LIST_REFERENCE), TensorArgument(7, How.OPTIONAL)),
        1,
    ),
    Native("blas", "sgemm", "sgemm_", "MKL", "/old/lib.so", 64, (), gemm=Gemm(2, False, True, "float32")),
]


class Library:
    """A file, and how often it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.reads = path, 0
        path.write_bytes(b"one")

    def find(self) -> list[Native]:
        self.reads += 1
        return list(NATIVES)

    def natives(self, key: str = "blas") -> Sequence[Native]:
        file = Descriptor(os.open(self.path, os.O_RDONLY))
        return findings.natives("/new/lib.so", findings.signed(file, key), self.find)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(findings, "_OF_ROOT", tmp_path / "cache" / "pytrace-ebpf" / "native")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pytrace-ebpf" / "native"


@pytest.fixture
def library(tmp_path: Path, cache: Path) -> Library:
    return Library(tmp_path / "lib.so")


def test_read_once_and_known_by_its_present_path(library: Library, cache: Path) -> None:
    first, again = library.natives(), library.natives()
    assert library.reads == 1
    assert [(each.qualname, each.returns, each.tensors, each.gemm) for each in again] == [
        (each.qualname, each.returns, each.tensors, each.gemm) for each in first
    ]
    assert {each.file for each in again} == {"/new/lib.so"}
    assert len(list(cache.iterdir())) == 1


def test_another_file_or_request_is_read_anew(library: Library) -> None:
    library.natives()
    library.natives(key="operators ['all']")
    assert library.reads == 2
    library.path.write_bytes(b"another")
    library.natives()
    assert library.reads == 3
    os.utime(library.path, ns=(1, 1))
    library.natives()
    assert library.reads == 4


@pytest.mark.parametrize("text", ["", "{", "[]x", "[1]", '[{"layer": "blas"}]', '{"a": 1}'])
def test_what_is_broken_is_found_again(library: Library, cache: Path, text: str) -> None:
    library.natives()
    (kept,) = cache.iterdir()
    kept.write_text(text)
    assert [each.qualname for each in library.natives()] == ["aten::cat", "sgemm_"]
    assert library.reads == 2
    library.natives()
    assert library.reads == 2


def test_without_a_place_to_keep_it(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(findings, "_OF_ROOT", tmp_path / "file" / "native")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [each.qualname for each in library.natives()] == ["aten::cat", "sgemm_"]
    assert [each.qualname for each in library.natives()] == ["aten::cat", "sgemm_"]
    assert library.reads == 2


def test_what_is_gone_is_an_error_that_says_so(library: Library) -> None:
    library.path.unlink()
    with pytest.raises(OSError):
        library.natives()


def test_the_oldest_are_forgotten(library: Library, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_KEPT", 2)
    for age, key in enumerate(("first", "second", "third")):
        before = set(cache.iterdir()) if cache.exists() else set()
        library.natives(key)
        for new in set(cache.iterdir()) - before:
            os.utime(new, (1000 + age, 1000 + age))
    assert len(list(cache.iterdir())) == 2
    library.natives("third")
    library.natives("second")
    assert library.reads == 3
    library.natives("first")
    assert library.reads == 4
