"""What `attach` starts and imports before it records: each process and package is time in which a busy host has others run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Target

# Says, once it records, how many processes it has started, and which modules it has imported.
_TOLD = """
import json, sys
started = []
sys.addaudithook(lambda event, words: started.append(words[1][-1:]) if event in ("subprocess.Popen", "os.fork", "os.posix_spawn") else None)
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.record.session import Session
start = Session.start
def told(self, *pids):
    begun = start(self, *pids)
    print(json.dumps([len(started), sorted(name for name, module in sys.modules.items() if module)]), flush=True)
    return begun
Session.start = told
sys.exit(main())
"""
# What writes may be imported meanwhile, by a thread beside; this is of those who read.
_NEVER = {"pandas", "rich", "textual", "pytrace_ebpf.analyze", "pytrace_ebpf.derive", "pytrace_ebpf.view.functions", "pytrace_ebpf.trace.reader"}


@pytest.mark.parametrize("words", [["--source", "agent"], ["--sample"]], ids=["agent", "sample"])
def test_few_processes_and_packages(tmp_path: Path, target: Callable[..., Target], words: list[str]) -> None:
    pid = target("busy").pid
    command = [sys.executable, "-c", _TOLD, "attach", "-q", "--pid", str(pid), "--duration", "0.1", "-o", str(tmp_path / "trace"), *words]
    count, modules = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert count <= 2 and _NEVER & set(modules) == set()
