"""SIGKILL of the tracer at any moment of attaching, recording and detaching: no target is harmed, nothing stays behind.

`--kills 1000` for as many in each case; the seeds are fixed, the machine's speed makes the moments random.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.bpf.killed_tracers import KINDS
from tests.conftest import REPOSITORY, Python


@pytest.mark.parametrize("kind", KINDS)
def test_killed_tracers_harm_no_target_and_leave_nothing(pytestconfig: pytest.Config, python: Python, source: str, kind: str) -> None:
    kills = int(pytestconfig.getoption("--kills"))
    command = python.words
    if python.root:  # whose /tmp other tests use as well
        command[1:1] = ["--tmpfs", "/tmp:mode=1777"]
    words = [sys.executable, "-m", "tests.bpf.killed_tracers", kind, source, str(kills), "1", *command]
    run = subprocess.run(
        ["unshare", "-m", "--propagation", "private", *words],
        stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    said = json.loads(run.stdout.splitlines()[-1])
    assert said.pop("killed") > 0
    assert said == {
        "whole": 0, "ends_early": None, "after": 0, "semaphores": 0, "agents": 0, "exit_code": 0, "files": [],
    }  # fmt: skip
