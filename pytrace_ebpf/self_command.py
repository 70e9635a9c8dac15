"""How this installation starts itself, as its users start it, whatever lies in the current directory."""

import sys
from pathlib import Path

_START = "import sys; sys.path.insert(0, sys.argv[1]); sys.argv[:2] = ['pytrace-ebpf']; from pytrace_ebpf.cli.main import main; sys.exit(main())"


def command(*words: str) -> list[str]:
    """The words of a command line that runs `pytrace-ebpf WORDS`."""
    # -I: as the installed command is started; nothing in a program's directory is taken for a part of the tracer.
    return [sys.executable, "-I", "-c", _START, str(Path(__file__).parents[1]), *words]
