"""What the manifest says of the host: name, kernel, and which logical cores share a physical one."""

import platform
from pathlib import Path
from typing import Any

import psutil


def describe_host() -> dict[str, Any]:
    """Manifest keys `hostname`, `kernel`, `machine`, `cpus`, `memory_bytes`, `cpu_topology`."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
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
