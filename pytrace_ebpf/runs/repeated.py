"""Recorded runs of a program that other commands order, each a `run` of its own process."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf import self_command
from pytrace_ebpf.errors import HostError, PytraceError, TargetError
from pytrace_ebpf.record.rights.user import as_caller
from pytrace_ebpf.terminal import stopping
from pytrace_ebpf.trace.files import whole

_ERROR = "pytrace-ebpf: "


def record(command: Sequence[str], options: Sequence[str], log: Path, stopped: stopping.Stopped, under: str, environment: Mapping[str, str]) -> None:
    """One run, its output in `log`; `under`: its setting, in words. Raises PytraceError where the program did not end well, KeyboardInterrupt when stopped."""
    with whole(log, as_caller) as out:
        process = subprocess.Popen(
            self_command.command("run", *options, "--", *command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **environment}
        )
        passed_on = False
        while process.poll() is None:
            if stopped() and not passed_on:  # the recorder passes it on to the program, and finishes
                process.terminate()
                passed_on = True
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
    if stopped():
        raise KeyboardInterrupt
    if process.returncode:
        raise _failure(under, process.returncode, log)


def _failure(under: str, code: int, log: Path) -> PytraceError:
    """What went wrong in a run that ended with `code`: the tracer's own sentence, else that the program failed."""
    said = log.read_text(errors="replace").strip().splitlines()
    last = said[-1] if said else "nothing"
    if last.startswith(_ERROR):
        return (HostError if code == HostError.exit_code else TargetError)(last.removeprefix(_ERROR))
    return TargetError(
        f"the program ended with exit code {code} under {under}, so there is nothing to compare; its output ({last[:80]}) is in {log}."
    )
