"""What tracing costs per call, measured on this machine: the target's own interpreter runs fib with and without it."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.target import Target

_CHILD = Path(__file__).with_name("fib_child.py")


class FibChild:
    """The interpreter of `target` as a process of its own, run by the target's user, which runs fib when asked to.

    Raises TargetError where that cannot be: another root filesystem, a file that was replaced.
    """

    def __init__(self, target: Target, owner: os.stat_result, environment: Mapping[str, str] | None = None) -> None:
        if target.in_container:
            raise TargetError("an interpreter in a container is not started by the tracer")
        as_user: dict[str, Any] = (
            {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() != owner.st_uid else {}
        )
        try:
            self._child = subprocess.Popen(
                [target.executable, "-I", "-S", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **(environment or {})},
                **as_user,
            )
        except OSError as error:
            raise TargetError(f"{target.executable} cannot be started ({error.strerror})") from error
        self.pid = self._child.pid

    def ns_per_call(self) -> float:
        """One measurement: the median of its rounds. Raises TargetError where it has none to give."""
        try:
            if self._child.stdin is None or self._child.stdout is None:
                raise ValueError
            self._child.stdin.write("go\n")
            self._child.stdin.flush()
            return float(self._child.stdout.readline())
        except (OSError, ValueError):
            raise TargetError("the interpreter that was to measure the cost ended") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError, subprocess.TimeoutExpired):
            self._child.communicate(timeout=5)
        self._child.kill()
        self._child.wait()
