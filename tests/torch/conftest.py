"""What needs PyTorch: its Python, which `make torch` installs, and the workloads; where it is missing, no test here runs."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORKLOADS = Path(__file__).parents[2] / "scripts" / "workloads"
TORCH = Path(os.environ.get("PYTRACE_TORCH", "/var/lib/pytrace-ebpf/torch"))
PATIENCE_S = 300


class WithoutTorch(pytest.Module):
    """A file of tests that is skipped as a whole: the eBPF tests in it are not theirs who can load eBPF only."""

    def collect(self) -> list[pytest.Item]:
        """No tests."""
        pytest.skip("PyTorch is not installed: run make torch")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if (TORCH / ".made-from").exists():
        return None
    return WithoutTorch.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """The Python that has PyTorch."""
    return TORCH / "bin" / "python"


@pytest.fixture
def workload(torch_python: Path) -> Callable[..., dict[str, Any]]:
    """`workload(name, *options)` runs scripts/workloads/NAME.py to its end and returns what it says that it did."""

    def run(name: str, *options: str) -> dict[str, Any]:
        command = [str(torch_python), str(WORKLOADS / f"{name}.py"), "--threads", "1", "--wait", *options]
        done = subprocess.run(command, input="\n", stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
        ready, told = done.stdout.splitlines()
        assert ready == "ready"
        return dict(json.loads(told))

    return run
