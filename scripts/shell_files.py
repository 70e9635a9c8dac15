"""Write what shells and man find by themselves, made from the command line's parser: shell_files.py DIRECTORY (a prefix's share)."""

import argparse
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

import pytrace_ebpf
from pytrace_ebpf.cli import completion
from pytrace_ebpf.cli.main import parser

COMPLETIONS = {
    "bash": "bash-completion/completions/pytrace-ebpf",
    "zsh": "zsh/site-functions/_pytrace-ebpf",
    "fish": "fish/vendor_completions.d/pytrace-ebpf.fish",
}


def main(share: Path) -> None:
    files = {COMPLETIONS[shell]: completion.script(shell) for shell in completion.SHELLS}
    files["man/man1/pytrace-ebpf.1"] = manual(parser())
    for name, text in files.items():
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text)


def manual(line: argparse.ArgumentParser) -> str:
    page = Manpage(line)
    page.manual, page.source = "User commands", f"pytrace-ebpf {pytrace_ebpf.__version__}"
    text = str(page).replace(
        ".SH NAME\npytrace\\-ebpf\n", ".SH NAME\npytrace\\-ebpf \\- trace where the time of every call of a Python program goes\n", 1
    )
    return text.replace("\n'", "\n\\&'")  # a line that begins with ' is a command to troff


if __name__ == "__main__":
    main(Path(sys.argv[1]))
