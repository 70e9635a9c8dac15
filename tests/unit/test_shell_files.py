"""What shells complete and what man shows come from the command line itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from pytrace_ebpf.cli.main import COMMANDS
from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    subprocess.run([sys.executable, str(REPOSITORY / "scripts" / "shell_files.py"), str(folder)], check=True)
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


def test_the_manual_page_names_every_command_and_option(share: Path) -> None:
    page = (share / "man" / "man1" / "pytrace-ebpf.1").read_text().replace("\\-", "-")
    assert page.count(".TH ") == 1 and "trace where the time of every call" in page
    for word in (*COMMANDS, "--duration", "--layers", "--compensate"):
        assert word in page
