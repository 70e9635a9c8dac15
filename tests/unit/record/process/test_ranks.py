"""Which rank a process says that it has: by its launcher's variables, whatever else stands there."""

import os
import subprocess
import sys
from typing import Any

import pytest

from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.ranks import UNKNOWN, rank_of, said


def row(*values: Any) -> dict[str, Any]:
    return dict(zip(UNKNOWN, values, strict=True))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "run", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
            row(3, 1, 4, "run"),
        ),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "job.1"}, row(1, None, 2, "job.1")),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, row(0, None, 2, "77")),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, row(1, None, 2, None)),
        ({"RAY_JOB_ID": "0100", "RANK": "gold"}, row(None, None, None, "0100")),
        ({"RANK": "5", "WORLD_SIZE": "5"}, row(None, None, None, None)),
        ({"RANK": "9" * 5000, "WORLD_SIZE": "9" * 5001}, UNKNOWN),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, UNKNOWN),
        ({"RANK": "٣", "WORLD_SIZE": "٤"}, UNKNOWN),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "7", "TORCHELASTIC_RUN_ID": "x" * 9999}, row(0, None, 1, "x" * 200)),
    ],
)
def test_what_is_said(environment: dict[str, str], expected: dict[str, Any]) -> None:
    assert said(environment) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="looks at a process as root does")
def test_of_a_living_process_among_any_bytes() -> None:
    """A variable that is no text, one without a value and a very long one stand beside those that count."""
    hostile = {b"\xff\xfe": b"\xff", b"RANK": b"1", b"WORLD_SIZE": b"2", b"TORCHELASTIC_RUN_ID": b"a\xffb\n\x1b[31m", b"LONG": b"x" * 100_000}
    command = [sys.executable, "-c", "print('ready', flush=True); input()"]
    with subprocess.Popen(command, env=hostile, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # type: ignore[call-overload]
        assert process.stdout and process.stdout.readline() == "ready\n"
        assert rank_of(Pinned(process.pid)) == row(1, None, 2, "a�b\n\x1b[31m")
        process.communicate("\n")
