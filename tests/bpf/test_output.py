"""What is left on disk: a trace that belongs to who called sudo; and what a full disk does to a recording."""

import os
import pwd
import subprocess
from pathlib import Path

import pytrace_ebpf
from tests.bpf.conftest import COMMAND


def test_the_program_and_the_trace_belong_to_the_invoking_user(tmp_path: Path) -> None:
    user = pwd.getpwnam("nobody")
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    program = "import os; print(os.getuid(), os.getgid(), os.environ['USER'])"
    ended = subprocess.run(
        [*COMMAND, "run", "-o", str(tmp_path / "trace"), "--", "/usr/bin/python3.11", "-c", program],
        env=os.environ | {"SUDO_UID": str(user.pw_uid), "SUDO_GID": str(user.pw_gid)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.stdout.split() == [str(user.pw_uid), str(user.pw_gid), "nobody"], ended.stderr
    assert {path.stat().st_uid for path in (tmp_path / "trace").rglob("*")} == {user.pw_uid}
    assert len(pytrace_ebpf.open(tmp_path / "trace").functions())


def test_a_full_disk_ends_the_recording_in_one_sentence(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=True)
    try:
        ended = subprocess.run(
            [*COMMAND, "run", "-q", "-o", str(tmp_path / "trace"), "--", "/usr/bin/python3.11", "-c", "import json, asyncio, unittest"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert ended.returncode == 4
    assert ended.stderr.count("\n") == 1 and "No space left" in ended.stderr, ended.stderr
