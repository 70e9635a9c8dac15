"""What the probes cost per call, measured on this machine: the target's own interpreter runs fib with and without them."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.record.source_usdt import ON, UsdtSource
from pytrace_ebpf.record.target import Target, inspect

_CHILD = Path(__file__).with_name("fib_child.py")


def cost_per_call(source: UsdtSource, target: Target, uid: int, gid: int) -> float | None:
    """Nanoseconds that `source` adds to one call and its return; the median of rounds with less the one without.

    Runs the target's interpreter for a fraction of a second, as user `uid`. None
    where that cannot be: another root filesystem, a file that was replaced.
    """
    if target.in_container:
        return None
    command = [target.executable, "-I", "-S", str(_CHILD)]
    as_user: dict[str, Any] = {"user": uid, "group": gid, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **as_user
        )
    except OSError:
        return None
    try:
        plain = _round(child)
        source.attach(child.pid, inspect(child.pid).binary_path)
        source.record(ON)
        traced = _round(child)
        return max(0.0, round(traced - plain, 1))
    except (PytraceError, OSError, ValueError):
        return None
    finally:
        source.detach(child.pid)
        with suppress(OSError):
            child.communicate(timeout=5)
        child.kill()


def _round(child: "subprocess.Popen[str]") -> float:
    """Ask the child for one measurement: ns per call. Raises ValueError when it has none to give."""
    if child.stdin is None or child.stdout is None:
        raise ValueError("the child has no pipes")
    child.stdin.write("go\n")
    child.stdin.flush()
    return float(child.stdout.readline())
