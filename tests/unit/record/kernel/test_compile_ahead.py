"""The eBPF programs are compiled before they are asked for: for this kernel and for another one, once."""

import platform
import subprocess
from pathlib import Path

import pytest

from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import doctor
from pytrace_ebpf.record.kernel import bpf_object, compile_ahead, fixes, headers, host, program_cache
from pytrace_ebpf.record.kernel.bpf_object import Kernel
from pytrace_ebpf.record.kernel.host import Finding
from tests.conftest import REPOSITORY

OTHER = "6.1.0-18-amd64"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """What is kept, by key; nothing is really compiled."""
    found: dict[str, bytes] = {}

    def compile_(source: str, text: str, kernel: Kernel) -> bytes:
        return b'{"maps": [], "structs": {}, "programs": {}}'

    monkeypatch.setattr(program_cache, "load", found.get)
    monkeypatch.setattr(program_cache, "keep", found.__setitem__)
    monkeypatch.setattr(bpf_object, "_compile", compile_)
    monkeypatch.setattr(compile_ahead, "_MODULES", tmp_path)
    monkeypatch.setattr(host, "SYSTEM_HEADERS", tmp_path / "headers")
    monkeypatch.setattr(host, "bcc", lambda: Path(__file__))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return found


@pytest.fixture(params=["6.1.0-18-amd64", "6.1.0-18-cloud-amd64"])
def split_in_two(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Headers of a kernel of that release, as Debian packs them."""
    release = str(request.param)
    own, common = tmp_path / "src" / f"linux-headers-{release}", tmp_path / "src" / "linux-headers-6.1.0-18-common"
    for folder, name in ((own, "generated/autoconf.h"), (common, "linux/kconfig.h")):
        (folder / "include" / name).parent.mkdir(parents=True)
        (folder / "include" / name).touch()
    (tmp_path / release).mkdir()
    (tmp_path / release / "build").symlink_to(own)
    return release


def test_each_is_compiled_once(kept: dict[str, bytes]) -> None:
    said: list[str] = []
    assert not compile_ahead.all_kept() and compile_ahead.compile_all(platform.release(), said.append)
    many = len(compile_ahead.sources())
    assert compile_ahead.all_kept() and len(kept) == many and len(said) == 2 * many
    assert compile_ahead.compile_all(platform.release(), said.append) and len(said) == 2 * many


def test_a_kernel_that_is_to_be_booted_finds_what_was_compiled_for_it(
    kept: dict[str, bytes], split_in_two: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trees: list[set[str]] = []

    def compile_(source: str, text: str, kernel: Kernel) -> bytes:
        assert kernel.headers is not None
        trees.append({str(path.relative_to(kernel.headers)) for path in kernel.headers.rglob("*.h")})
        return b'{"maps": [], "structs": {}, "programs": {}}'

    monkeypatch.setattr(bpf_object, "_compile", compile_)
    assert compile_ahead.compile_all(split_in_two, lambda sentence: None)
    assert trees == [{"include/generated/autoconf.h", "include/linux/kconfig.h"}] * len(compile_ahead.sources())
    assert not compile_ahead.all_kept()
    monkeypatch.setattr(platform, "release", lambda: split_in_two)  # it is booted
    monkeypatch.setattr(host, "header_tree", lambda: None)  # and bcc finds its headers
    assert compile_ahead.all_kept()


def test_without_its_headers_others_are_taken_as_they_will_be(kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "headers" / "include" / "linux").mkdir(parents=True)
    assert compile_ahead.compile_all(OTHER, lambda sentence: None)
    monkeypatch.setattr(platform, "release", lambda: OTHER)
    monkeypatch.setattr(host, "header_tree", lambda: tmp_path / "headers")
    assert compile_ahead.all_kept()


def test_half_of_its_headers_are_none(kept: dict[str, bytes], split_in_two: str, tmp_path: Path) -> None:
    (tmp_path / "src" / "linux-headers-6.1.0-18-common" / "include" / "linux" / "kconfig.h").unlink()
    with pytest.raises(HostError, match="a part of the headers"):
        compile_ahead.compile_all(split_in_two, lambda sentence: None)


@pytest.mark.parametrize(("release", "said"), [(OTHER, "no headers of Linux 6.1.0-18-amd64"), ("../../etc", "is no release of a kernel"), ("", "")])
def test_what_cannot_be_is_one_sentence(release: str, said: str, kept: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--compile", *([release] if release else [])])
    assert code == (HostError.exit_code if release else 0)
    shown = capsys.readouterr().err
    assert said in shown and shown.splitlines()[-1].startswith("pytrace-ebpf: " if release else "doctor: the eBPF programs are compiled")


def test_only_roots_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["doctor", "--compile"]) == HostError.exit_code
    assert "sudo pytrace-ebpf doctor --compile" in capsys.readouterr().err
    assert not list(doctor._compiled())


def test_one_that_the_headers_refuse_does_not_keep_the_others_from_it(kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = bpf_object._compile

    def refuse(source: str, text: str, kernel: Kernel) -> bytes:
        if source == "blocks.c":
            raise HostError("the kernel or its headers refuse blocks.c (error: a field)")
        return compile_(source, text, kernel)

    monkeypatch.setattr(bpf_object, "_compile", refuse)
    said: list[str] = []
    assert not compile_ahead.compile_all(platform.release(), said.append)
    assert len(kept) == len(compile_ahead.sources()) - 1 and "the kernel or its headers refuse blocks.c (error: a field)" in said


@pytest.mark.parametrize("whole", [True, False])
def test_the_doctor_says_whether_a_recording_will_compile_and_fixes_it(whole: bool, kept: dict[str, bytes]) -> None:
    if whole:
        compile_ahead.compile_all(platform.release(), lambda sentence: None)
    (found,) = doctor._compiled()
    assert (found.ok, found.fix) == (("ok", "") if whole else ("warning", host.FIX))
    steps = fixes.plan([found])
    assert [step.compiles for step in steps] == ([] if whole else [True])
    fixes.carry_out(steps, lambda sentence: None)
    assert compile_ahead.all_kept()


def test_what_fixes_the_headers_compiles_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixes, "_headers_at_hand", lambda: iter([fixes.Step((("true",),))]))
    assert [step.compiles for step in fixes.plan([Finding("headers", "problem", "none", host.FIX)])] == [False, True]
    assert headers.parts_of(Path("/nowhere/build")) == []


@pytest.mark.parametrize("code", [0, 4])
def test_the_hook_of_kernels_never_fails(code: int, tmp_path: Path) -> None:
    program, script = tmp_path / "bin" / "pytrace-ebpf", tmp_path / "hook"
    script.write_text((REPOSITORY / "scripts" / "deb" / "kernel-hook").read_text().replace("@PREFIX@", str(tmp_path)))
    assert subprocess.run(["sh", script, OTHER, "/boot/vmlinuz"]).returncode == 0, "before the program is unpacked"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked; exit {code}\n')
    program.chmod(0o755)
    assert subprocess.run(["sh", script, OTHER, "/boot/vmlinuz"]).returncode == 0
    assert (tmp_path / "asked").read_text() == f"doctor --compile {OTHER}\n"
