"""Print what bash, zsh or fish completes the words of pytrace-ebpf with.

    pytrace-ebpf completion bash > ~/.local/share/bash-completion/completions/pytrace-ebpf
    pytrace-ebpf completion zsh > DIRECTORY_OF_FPATH/_pytrace-ebpf
    pytrace-ebpf completion fish > ~/.config/fish/completions/pytrace-ebpf.fish

`make install` puts all three where the shells look.
"""

import argparse
import sys
from collections.abc import Iterator

from pytrace_ebpf.cli import main

NAME = "completion"
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print it."""
    sys.stdout.write(script(args.shell))
    return 0


def script(shell: str) -> str:
    """What this shell is to source, made from the parser. Raises ModuleNotFoundError without shtab."""
    import shtab

    line = main.parser()
    paths = {"TRACE": shtab.DIRECTORY, "DIR": shtab.DIRECTORY, "FILE": shtab.FILE}
    for action in _actions(line):
        if action.metavar in paths:
            action.complete = paths[str(action.metavar)]  # type: ignore[attr-defined] # which shtab reads
    return shtab.complete(line, shell)


def _actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in of._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
