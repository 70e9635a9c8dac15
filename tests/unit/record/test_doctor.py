"""The doctor: its findings are whole sentences, its exit codes the contract's, its output plain in a pipe."""

import argparse
import errno
import json
import os
import platform
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.cli import doctor as command
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import doctor
from pytrace_ebpf.record.kernel import host
from pytrace_ebpf.record.kernel.host import Finding
from pytrace_ebpf.record.kernel.tracefs import TRACEFS
from pytrace_ebpf.record.process.target import inspect

GOOD = Finding("a", "ok", "it is fine")
WARNING = Finding("b", "warning", "it is dear")
HOST = Finding("c", "problem", "it is missing", "mount it")
TARGET = Finding("d", "problem", "it is not a Python", about="target")


@pytest.mark.parametrize(("found", "code"), [([], 0), ([GOOD, WARNING], 0), ([HOST], 4), ([GOOD, TARGET], 3), ([TARGET, HOST], 4)])
def test_exit_code(found: list[Finding], code: int) -> None:
    assert doctor.exit_code(found) == code


def test_every_finding_is_one_sentence() -> None:
    found = doctor.findings(os.getpid())
    assert {finding.about for finding in found} == {"host", "target"}
    assert len({finding.subject for finding in found}) == len(found)
    for finding in found:
        assert finding.sentence
        assert "\n" not in finding.sentence
        assert not finding.sentence.endswith(".")
        assert finding.ok in ("ok", "warning", "problem")


def test_the_cost_of_3_11_names_both_of_its_dangers() -> None:
    own = inspect(os.getpid())
    sentence = doctor._cost_of_probes(replace(own, python_version=(3, 11, 2))).sentence
    assert "every opcode" in sentence
    assert "8 times" in sentence
    assert "use-after-free" in sentence
    assert doctor._cost_of_probes(replace(own, python_version=(3, 9, 2))).ok == "ok"


def test_a_process_that_is_no_python_is_the_targets_problem() -> None:
    process = subprocess.Popen(["sleep", "100"])
    try:
        found = [finding for finding in doctor.findings(process.pid) if finding.about == "target"]
    finally:
        process.kill()
        process.wait()
    assert [finding.ok for finding in found] == ["problem"]
    assert "not a Python" in found[0].sentence


def test_folders_that_only_root_may_look_into_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real, closed = os.stat, tuple(f"{folder}/" for folder in (TRACEFS, "/sys/kernel/debug", host.SYSTEM_HEADERS))

    def stat(path: Any, *others: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(closed):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *others, **more)

    before = [(each.subject, each.ok) for each in host.findings() if each.subject != "headers"]
    monkeypatch.setattr(os, "stat", stat)
    assert [(each.subject, each.ok) for each in host.findings() if each.subject != "headers"] == before


def test_the_first_problem_stops_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_findings", lambda **_: iter([GOOD, WARNING]))
    host.require_ebpf()
    monkeypatch.setattr(host, "_findings", lambda **_: iter([GOOD, HOST]))
    with pytest.raises(HostError, match="it is missing; to fix it: mount it"):
        host.require_ebpf()


@pytest.mark.parametrize(
    "words", [["run", "--", "true"], ["run", "--rootless", "--", "true"], ["attach", "1"], ["attach", "--rootless", "--sample", "1"]]
)
def test_on_another_machine_nothing_is_recorded(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert main(words) == 4
    assert capsys.readouterr().err == "pytrace-ebpf: recording needs Linux on x86-64 or aarch64, and this is Linux on riscv64\n"


def test_a_command_with_escapes_is_shown_without_them() -> None:
    own = replace(inspect(os.getpid()), command="python \x1b[31mred\n" + "x" * 1000)
    sentence = next(iter(doctor._about_target(own))).sentence
    assert "\x1b" not in sentence
    assert "\n" not in sentence
    assert len(sentence) < 300


def test_headers_named_by_the_environment_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    assert host.header_tree() == tmp_path
    assert host._headers().ok == "ok"
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path / "none"))
    assert host._headers().fix == "unset BCC_KERNEL_SOURCE"


def test_headers_that_bcc_finds_itself_are_left_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    monkeypatch.setattr(host, "_modules_tree", lambda: tmp_path)
    assert host.header_tree() is None
    assert host._headers().ok == "ok"


def test_merged_headers_serve_where_the_kernels_own_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    monkeypatch.setattr(host, "_modules_tree", lambda: tmp_path / "none")
    monkeypatch.setattr(host, "SYSTEM_HEADERS", tmp_path / "headers")
    assert host.header_tree() is None
    (tmp_path / "headers" / "include" / "linux").mkdir(parents=True)
    assert host.header_tree() == tmp_path / "headers"


@pytest.mark.parametrize(("user", "taken"), [(0, False), (65534, True)])
def test_root_compiles_no_headers_from_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: int, taken: bool) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    monkeypatch.setattr(host, "_modules_tree", lambda: tmp_path / "none")
    monkeypatch.setattr(host, "SYSTEM_HEADERS", tmp_path / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    (tmp_path / "pytrace-ebpf" / "headers" / "include" / "linux").mkdir(parents=True)
    assert (host.header_tree() is not None) == taken


@pytest.mark.parametrize("found", [[GOOD, WARNING], [HOST], [TARGET]])
def test_json(found: list[Finding], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "findings", lambda pid, patterns: found)
    code = command.run(argparse.Namespace(pid=None, json=True, fix=False, yes=False, compile=None, args=[], include=[]))
    said = json.loads(capsys.readouterr().out)
    assert said["can_trace"] == (code == 0)
    assert [finding.pop("mend") for finding in said["findings"]] == [each.fix for each in found]  # what `fix` was called
    assert [Finding(**finding) for finding in said["findings"]] == found


def test_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "findings", lambda pid, patterns: [GOOD, HOST])
    assert command.run(argparse.Namespace(pid=None, json=False, fix=False, yes=False, compile=None, args=[], include=[])) == 4
    assert capsys.readouterr().out == "ok       a: it is fine\nproblem  c: it is missing\n         to fix it: mount it\n"


def test_a_table_in_a_terminal() -> None:
    table = command._table([GOOD, HOST])
    assert table.row_count == 2
