"""What shells complete and what man shows come from the command line itself."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytrace_ebpf.cli.main import COMMANDS, main, parser
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "shell_files.py"), str(folder)], check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    return folder


@pytest.mark.parametrize(
    ("typed", "offered"), [("pytrace-ebpf rep", "report"), ("pytrace-ebpf report --by op", "operator"), ("pytrace-ebpf attach --dur", "--duration")]
)
def test_bash_completes_commands_options_and_their_values(share: Path, typed: str, offered: str) -> None:
    script = share / "bash-completion" / "completions" / "pytrace-ebpf"
    words = typed.split()
    line = f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_pytrace_ebpf; echo ${{COMPREPLY[@]}}"
    said = subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True).stdout
    assert offered in said.split()


def test_bash_offers_every_command_and_every_option(share: Path) -> None:
    commands = next(action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    wanted = {
        name: {word for action in below._actions if action.help != argparse.SUPPRESS for word in action.option_strings if word.startswith("--")}
        for name, below in commands.items()
    }
    ask = 'offer() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_pytrace_ebpf; echo "${COMPREPLY[*]}"; }'
    asked = "; ".join([ask, 'offer pytrace-ebpf ""', *(f"offer pytrace-ebpf {name} --" for name in commands)])
    source = share / "bash-completion" / "completions" / "pytrace-ebpf"
    said = subprocess.run(["bash", "-c", f"source {source}; {asked}"], check=True, capture_output=True, text=True).stdout.splitlines()
    assert set(said[0].split()) == set(COMMANDS) == set(commands)
    assert {name: set(line.split()) for name, line in zip(commands, said[1:], strict=True)} == wanted


def test_completion_is_what_is_installed(share: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shell, name in (("bash", "bash-completion/completions/pytrace-ebpf"), ("zsh", "zsh/site-functions/_pytrace-ebpf")):
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == (share / name).read_text()


def test_the_manual_page_names_every_command_and_option(share: Path) -> None:
    page = (share / "man" / "man1" / "pytrace-ebpf.1").read_text().replace("\\-", "-")
    assert "\n\\&'loop > 100ms'" in page and "\n'" not in page
    assert page.count(".TH ") == 1 and "trace where the time of every call" in page
    for word in (*COMMANDS, "--duration", "--layers", "--compensate"):
        assert word in page
