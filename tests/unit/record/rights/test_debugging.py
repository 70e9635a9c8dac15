"""What is said to who may not look into a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.rights import debugging
from tests.conftest import PATIENCE_S, without_rights


@pytest.mark.parametrize(
    ("scope", "said", "works"),
    [
        ("0\n", "may not be inspected by this user; run the command as root", True),
        ("1\n", "kernel.yama.ptrace_scope = 1 reserves that to whoever started it; start it by pytrace-ebpf run", False),
        ("2\n", "kernel.yama.ptrace_scope = 2 reserves that to root; run the command as root", False),
        ("3\n", "kernel.yama.ptrace_scope = 3 reserves that to nobody; boot without it", False),
        ("nonsense", "may not be inspected by this user; run the command as root", True),
    ],
)
def test_the_reason_is_yamas_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str, said: str, works: bool) -> None:
    path = tmp_path / "ptrace_scope"
    path.write_text(scope)
    monkeypatch.setattr(debugging, "SCOPE", path)
    assert said in debugging.why_refused(os.getpid())
    assert debugging.rootless()[0] == works
    assert ("yama" in debugging.rootless()[1]) == (not works)


def test_another_users_process_is_refused_whatever_yama_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "ptrace_scope"
    path.write_text("1")
    monkeypatch.setattr(debugging, "SCOPE", path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert debugging.why_refused(os.getpid()) == f"process {os.getpid()} may not be inspected by this user; run the command as root (sudo)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_elses_process_is_refused_with_exit_code_4() -> None:
    words = without_rights(65534, "-m", "pytrace_ebpf", "attach", "--rootless", "--sample", "--pid", str(os.getpid()))
    refused = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
    assert refused.returncode == HostError.exit_code, refused.stderr
    assert "may not be inspected by this user; run the command as root" in refused.stderr
    assert inspect(os.getpid()).pid == os.getpid() and sys.executable
