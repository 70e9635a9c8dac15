"""What is done with a fuzzed trace: the commands, in this process, which end with 0 or 5 and never with anything else."""

import contextlib
import io
import itertools
import os
from pathlib import Path

from pytrace_ebpf.cli.export import FORMATS
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.view.by import BY

COMMANDS = [
    *(["report", "--by", by, *more] for by in BY for more in ([], ["--json"])),
    *(["report", "--what-if", change, "--function", "*"] for change in ("fib 2x", "lock", "gil", "cores 4")),
    ["report", "--compensate", "--sort", "total"],
    ["info"],
    ["info", "--json"],
    *(["export", "--to", to, "-o", os.devnull] for to in FORMATS),
]
_turn = itertools.cycle(COMMANDS)


def try_commands(trace: Path, count: int) -> None:
    """Try the next `count` commands on it, so that all get their turn; info among them always."""
    for words in [["info"], *itertools.islice(_turn, count)]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([words[0], str(trace), *words[1:]])
        assert code in (0, 2, 5), (words, code, said.getvalue())
        assert code == 0 or said.getvalue().splitlines()[-1].startswith("pytrace-ebpf: "), said.getvalue()
