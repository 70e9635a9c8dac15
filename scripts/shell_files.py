"""Write what shells and man find by themselves, made from the command line's parser: shell_files.py DIRECTORY (a prefix's share)."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

import pytrace_ebpf
from pytrace_ebpf.cli.main import parser

COMPLETIONS = {
    "bash": "bash-completion/completions/pytrace-ebpf",
    "zsh": "zsh/site-functions/_pytrace-ebpf",
    "fish": "fish/vendor_completions.d/pytrace-ebpf.fish",
}
WORDS = {"TRACE": shtab.DIRECTORY, "DIR": shtab.DIRECTORY, "FILE": shtab.FILE}


def main(share: Path) -> None:
    line = parser()
    for action in actions(line):
        if action.metavar in WORDS:
            action.complete = WORDS[action.metavar]
    files = {name: shtab.complete(line, shell) for shell, name in COMPLETIONS.items()}
    files["man/man1/pytrace-ebpf.1"] = manual(line)
    for name, text in files.items():
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text)


def actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in of._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from actions(below)


def manual(line: argparse.ArgumentParser) -> str:
    page = Manpage(line)
    page.manual, page.source = "User commands", f"pytrace-ebpf {pytrace_ebpf.__version__}"
    return str(page).replace(
        ".SH NAME\npytrace\\-ebpf\n", ".SH NAME\npytrace\\-ebpf \\- trace where the time of every call of a Python program goes\n", 1
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
