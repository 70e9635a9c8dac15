"""What the manifest says from the start: format, host, clock, target and options."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytrace_ebpf.trace.schema import CALLER, FORMAT, FORMAT_VERSION


def new_manifest(start_ns: int, target: Mapping[str, Any], argv: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a recording that begins; its counts and segments come later."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "state": "recording",
        "entry_line": CALLER,
        "start_ns": start_ns,
        "end_ns": None,
        "clock": [clock_anchor()],
        "host": describe_host(),
        "target": dict(target),
        "argv": list(argv),
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
    }


def clock_anchor() -> dict[str, int]:
    """One moment in both clocks: keys `monotonic_ns` and `realtime_ns`."""
    before = time.monotonic_ns()
    realtime = time.time_ns()
    return {"monotonic_ns": (before + time.monotonic_ns()) // 2, "realtime_ns": realtime}


def describe_host() -> dict[str, Any]:
    """Manifest keys `hostname`, `kernel`, `machine`, `cpus`, `memory_bytes`, `cpu_topology`."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "cpu_topology": [_core(path) for path in sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology"))],
    }


def _core(topology: Path) -> dict[str, int]:
    def number(name: str) -> int:
        try:
            return int((topology / name).read_text())
        except (OSError, ValueError):
            return -1

    return {
        "cpu": int(topology.parent.name[3:]),
        "core": number("core_id"),
        "package": number("physical_package_id"),
    }
