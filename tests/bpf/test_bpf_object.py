"""Programs are compiled once for a host; the kept result is used again, or replaced where it is damaged."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import bpf_object, program_cache
from pytrace_ebpf.record.kernel.probe_sources import probes_directory
from pytrace_ebpf.record.libc import libc

_PR_CAPBSET_DROP, _CAP_SYSLOG = 24, 34


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that clang ran; nothing is kept at first."""
    monkeypatch.setattr(program_cache, "_ROOT", tmp_path)
    (tmp_path / "var" / "cache").mkdir(parents=True)
    ran: list[int] = []
    run = subprocess.run

    def counted(*args: Any, **more: Any) -> Any:
        ran.append(1)
        return run(*args, **more)

    monkeypatch.setattr(subprocess, "run", counted)
    return ran


def test_a_file_is_compiled_once(compilations: list[int]) -> None:
    first = bpf_object.compiled("empty.c")
    assert set(first.programs) == {"function_entry", "function_return", "function_never"}
    assert bpf_object.compiled("empty.c") == first
    assert len(compilations) == 1


def test_a_damaged_result_is_compiled_again(compilations: list[int], tmp_path: Path) -> None:
    first = bpf_object.compiled("empty.c")
    (file,) = (tmp_path / program_cache._FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert bpf_object.compiled("empty.c") == first
    assert bpf_object.compiled("empty.c") == first
    assert len(compilations) == 2


def test_a_changed_include_is_compiled_again(compilations: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf_object, "probes_directory", lambda: tmp_path)
    for value in (1, 2, 1):
        (tmp_path / "included.h").write_text(f"#define VALUE {value}\n")
        (tmp_path / "new.c").write_text('#include "included.h"\nint program(void *ctx)\n{\n    return VALUE;\n}\n')
        (code,) = bpf_object.compiled("new.c").programs.values()
        assert code[4] == value  # of r0 = VALUE
    assert len(compilations) == 2


def test_an_error_of_clang_is_one_sentence_and_is_not_kept(compilations: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpf_object, "probes_directory", lambda: tmp_path)
    (tmp_path / "wrong.c").write_text("int program(void *ctx)\n{\n    return nothing_of_the_kind;\n}\n")
    for _ in range(2):
        with pytest.raises(HostError, match=r"refuse wrong\.c \(wrong\.c:3:12: error: .*nothing_of_the_kind"):
            bpf_object.compiled("wrong.c")
    assert len(compilations) == 2


def helpers(programs: dict[str, bytes]) -> set[int]:
    """The kernel's helpers that programs call (enum bpf_func_id)."""
    calls = [code[at : at + 8] for code in programs.values() for at in range(0, len(code), 8)]
    return {int.from_bytes(each[4:], "little") for each in calls if each[0] == 0x85 and not each[1] >> 4}


@pytest.mark.parametrize("source", sorted(path.name for path in probes_directory().glob("*.c")))
def test_a_process_is_read_as_one_by_who_is_not_shown_the_kernels_symbols(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[int]
) -> None:
    """bcc makes bpf_probe_read() of reads where it does not find their helpers in /proc/kallsyms, and that reads the kernel's memory, too."""
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *args, **more: run(*args, **more, preexec_fn=lambda: libc.prctl(_PR_CAPBSET_DROP, _CAP_SYSLOG, 0, 0, 0))
    )
    programs = bpf_object.compiled(source).programs
    assert not helpers(programs) & {4, 45}
    (tmp_path / "generic.c").write_text(
        "int program(void *ctx)\n{\n    int taken;\n    bpf_probe_read_user(&taken, sizeof(taken), ctx);\n    return taken;\n}\n"
    )
    monkeypatch.setattr(bpf_object, "probes_directory", lambda: tmp_path)
    with pytest.raises(HostError, match=r"bcc made bpf_probe_read\(\) of a read of a process's memory"):
        bpf_object.compiled("generic.c")
