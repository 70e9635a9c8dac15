"""SIGKILL of the tracer while it samples: nothing of it stays, the program goes on, and the trace opens."""

import json
import os
import re
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.record.kernel import system_calls
from tests.bpf.conftest import Recorder, of_thread, wait_until
from tests.conftest import Target

HZ = 199
PROGRAM_BY_ID = 13  # BPF_PROG_GET_FD_BY_ID


def programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(OSError):
            found |= {int(number) for number in re.findall(r"^prog_id:\s*(\d+)$", descriptor.read_text(), re.MULTILINE)}
    return found


def is_loaded(program: int) -> bool:
    try:
        descriptor = system_calls.bpf(PROGRAM_BY_ID, struct.pack("<III", program, 0, 0))
    except OSError:
        return False
    os.close(descriptor)
    return True


def mapped_files(pid: int) -> set[str]:
    return {line.split(maxsplit=5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/" in line}


def family(pid: int) -> list[int]:
    """Its children, whichever of its threads started them."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in of_thread(task, "children").split()]


def test_a_killed_tracer_leaves_nothing_and_its_samples_open(
    target: Callable[..., Target], attach: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]
) -> None:
    process = target("shares", "30", "--wait")
    descriptors, mapped = len(list(Path(f"/proc/{process.pid}/fd").iterdir())), mapped_files(process.pid)
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    wait_until(lambda: any((recorder.directory / "samples").glob("*.parquet")) and len(pytrace_ebpf.open(recorder.directory).samples()) > 0)
    programs, children = programs_of(recorder.process.pid), family(recorder.process.pid)
    assert len(programs) >= 5 and all(map(is_loaded, programs)) and children
    recorder.process.send_signal(signal.SIGKILL)
    assert recorder.process.wait() == -signal.SIGKILL
    wait_until(lambda: not any(map(is_loaded, programs)))
    wait_until(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children))
    assert process.process.poll() is None
    assert "TracerPid:\t0\n" in Path(f"/proc/{process.pid}/status").read_text()
    assert (len(list(Path(f"/proc/{process.pid}/fd").iterdir())), mapped_files(process.pid)) == (descriptors, mapped)
    assert main(["info", str(recorder.directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "recording"  # not finished
    trace = pytrace_ebpf.open(recorder.directory)
    samples, stacks = trace.samples(), trace.stacks()
    assert set(samples["stack_id"]) - {-1, -2} <= set(stacks["stack_id"])
    assert len(set(trace.functions()["name"]) & {"short", "long", "deep", "lines"}) == 4
    assert main(["report", str(recorder.directory)]) == 0
    again = attach(process.pid, "--sample", str(HZ), "--duration", "0.5")
    assert len(pytrace_ebpf.open(again.finish()).samples()) > 0
