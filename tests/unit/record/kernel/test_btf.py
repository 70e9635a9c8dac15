"""Fields are found in the kernel's type information by the names of their structs."""

import os
import struct
from pathlib import Path

import pytest

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import btf as btf_module
from pytrace_ebpf.record.kernel.btf import KernelTypes

INT, STRUCT, UNION = 1, 4, 5
BITFIELDS = 1 << 31


def btf(tmp_path: Path) -> KernelTypes:
    """int; struct task {int pid; union {struct {int deep;};}; int __state;}; struct packed, with the size of a bitfield in its offsets."""
    strings = b"\0int\0task\0pid\0__state\0packed\0deep\0flag\0btf_trace_sched_exit_tp\0"

    def name(text: str) -> int:
        return strings.index(b"\0" + text.encode() + b"\0") + 1 if text else 0

    words = [
        *(name("int"), INT << 24, 4, 32),
        *(name("task"), INT << 24, 4, 32),  # another type of the same name
        *(name("task"), STRUCT << 24 | 3, 24, name("pid"), 1, 64, 0, 6, 96, name("__state"), 1, 128),
        *(name("packed"), BITFIELDS | STRUCT << 24 | 1, 8, name("flag"), 1, 3 << 24 | 32),
        *(0, STRUCT << 24 | 1, 8, name("deep"), 1, 32),
        *(0, UNION << 24 | 2, 8, 0, 5, 0, 0, 1, 0),
    ]
    types = struct.pack(f"<{len(words)}I", *words)
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    file = tmp_path / "vmlinux"
    file.write_bytes(header + types + strings)
    return KernelTypes(file)


def test_offsets_are_in_bytes(tmp_path: Path) -> None:
    types = btf(tmp_path)
    assert (types.offset("task", "pid"), types.offset("task", "__state"), types.offset("packed", "flag")) == (8, 16, 4)


def test_a_field_in_a_nameless_member(tmp_path: Path) -> None:
    assert btf(tmp_path).offset("task", "deep") == (96 + 32) // 8


def test_the_first_name_that_exists(tmp_path: Path) -> None:
    assert btf(tmp_path).require("task", "state", "__state") == 16


@pytest.mark.parametrize(("name", "field"), [("task", "flag"), ("task", "nothing"), ("nothing", "pid"), ("int", "pid")])
def test_a_missing_field_is_reported(tmp_path: Path, name: str, field: str) -> None:
    types = btf(tmp_path)
    assert types.offset(name, field) is None
    with pytest.raises(HostError, match=f"struct {name} has no {field}"):
        types.require(name, field)


@pytest.mark.parametrize("content", [None, b"", b"\x9f\xeb\x01\0"])
def test_a_kernel_without_it(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "vmlinux"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(HostError, match="type information"):
        KernelTypes(file).require("task", "pid")


def test_a_tracepoint_is_there_or_not(tmp_path: Path) -> None:
    types = btf(tmp_path)
    assert types.has_tracepoint("sched_exit_tp") and not types.has_tracepoint("sched_exit")


@pytest.mark.skipif(os.geteuid() != 0 or not btf_module._VMLINUX.exists(), reason="needs root, and a kernel with type information")
def test_what_was_found_is_kept_for_this_kernel_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(btf_module.program_cache, "load", kept.get)
    monkeypatch.setattr(btf_module.program_cache, "keep", kept.__setitem__)
    first = KernelTypes()
    found = [first.require("task_struct", "pid"), first.offset("task_struct", "nothing")]
    first.keep()
    monkeypatch.setattr(Path, "read_bytes", lambda path, read=Path.read_bytes: 1 / 0 if path == btf_module._VMLINUX else read(path))
    again = KernelTypes()
    assert [again.require("task_struct", "pid"), again.offset("task_struct", "nothing")] == found
    (tmp_path / "notes").write_bytes(b"another kernel")
    monkeypatch.setattr(btf_module, "_NOTES", tmp_path / "notes")
    with pytest.raises(ZeroDivisionError):
        KernelTypes()
