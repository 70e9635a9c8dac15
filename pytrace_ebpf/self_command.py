"""How this installation starts itself: its command line as users start it, and its worker processes, whatever lies in the current directory."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_START = "import sys; sys.path.insert(0, sys.argv[1]); sys.argv[:2] = ['pytrace-ebpf']; from pytrace_ebpf.cli.main import main; sys.exit(main())"
_HERE = str(Path(__file__).parents[1])


def command(*words: str) -> list[str]:
    """The words of a command line that runs `pytrace-ebpf WORDS`."""
    # -I: as the installed command is started; nothing in a program's directory is taken for a part of the tracer.
    return [sys.executable, "-I", "-c", _START, _HERE, *words]


def worker(name: str, *words: str, packages: bool = True) -> list[str]:
    """The words of a command line that runs main(*WORDS) of workers/NAME.py, with the packages that this process has or, without `packages`, none."""
    path = [_HERE, *(sys.path if packages else ())]
    return [sys.executable, "-I", "-S", "-c", _work(name, path), *words]


def _work(name: str, path: Sequence[str]) -> str:
    return f"import sys; sys.path[:0] = {path!r}; from pytrace_ebpf.workers import {name}; {name}.main(*sys.argv[1:])"


def start_worker(name: str, *words: str, files: Sequence[int] = (), packages: bool = True, **others: Any) -> "subprocess.Popen[bytes]":
    """Start one that has nothing of this process but `files`; `others` as of Popen change that. Raises OSError."""
    nothing: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    nothing |= {"env": {"OPENBLAS_NUM_THREADS": "1"}, "cwd": "/"}
    return subprocess.Popen(worker(name, *words, packages=packages), pass_fds=files, **(nothing | others))
