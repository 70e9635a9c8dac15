"""The command line: help without importing, one sentence for an error, the right exit codes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytrace_ebpf import __version__
from pytrace_ebpf.cli import main
from pytrace_ebpf.errors import HostError, PytraceError, TargetError
from tests.unit.synthetic import sample


def run(*words: str) -> int:
    try:
        return main.main(words)
    except SystemExit as stop:  # argparse: --help, --version and usage errors
        return int(stop.code or 0)


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys; from pytrace_ebpf.cli import main\n"
        "try: main.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not [m for m in sys.modules if m.startswith('pytrace_ebpf.') and m.split('.')[1] in ('record', 'view', 'analyze')]\n"
    )
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert all(name in out for name in main.COMMANDS)


@pytest.mark.parametrize("name", ["report", "export", "info"])
def test_a_commands_docstring_is_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    out = capsys.readouterr().out
    module = sys.modules[f"pytrace_ebpf.cli.{name}"]
    assert (module.__doc__ or "").splitlines()[0] in out and "TRACE" in out and name == module.NAME


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0 and capsys.readouterr().out == f"pytrace-ebpf {__version__}\n"


@pytest.mark.parametrize("words", [(), ("nonsense",), ("report",), ("report", "x", "--by", "moon"), ("export", "x"), ("info", "--nope")])
def test_usage_errors_exit_2(words: tuple[str, ...]) -> None:
    assert run(*words) == 2


def test_a_wrong_trace_is_one_sentence_and_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("report",), ("info",), ("export", "--to", "perfetto")):
        assert run(*words, str(tmp_path)) == 5
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("pytrace-ebpf: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize(("error", "code"), [(TargetError("x"), 3), (HostError("x"), 4), (KeyboardInterrupt(), 130)])
def test_errors_become_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pytrace_ebpf.open", fail)
    assert run("report", str(tmp_path)) == code
    assert capsys.readouterr().err == ("pytrace-ebpf: x\n" if isinstance(error, PytraceError) else "")


def test_top_and_compensate_say_what_they_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(sample(tmp_path / "sample"))
    assert run("report", trace, "--top", "-1") == 2
    assert "--top" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    trace = sample(tmp_path / "sample")
    command = [sys.executable, "-m", "pytrace_ebpf", "report", "--json", str(trace)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 128 + signal.SIGPIPE


def test_export_writes_beside_you_or_where_you_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = sample(tmp_path / "sample")
    monkeypatch.chdir(tmp_path)
    for to, name in (("perfetto", "sample.perfetto-trace"), ("speedscope", "sample.speedscope.json"), ("folded", "sample.folded")):
        assert run("export", str(trace), "--to", to) == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert run("export", str(trace), "--to", "folded", "-o", "x") == 0 and (tmp_path / "x").exists()
    assert run("export", str(trace), "--to", "folded", "-o", "no/such/folder") == 2


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample(tmp_path / "trace")
    monkeypatch.chdir(tmp_path)
    document = (Path(__file__).parents[2] / "docs/notebook.md").read_text()
    cells = [part.partition("```")[0] for part in document.split("```python\n")[1:]]
    space: dict[str, object] = {}
    for cell in cells:
        if "duckdb" not in cell:  # not ours to install, nor is what draws
            exec(cell.replace(".plot.barh(stacked=True)", ""), space)
    assert len(cells) >= 7 and len(space["inside"]) > 1  # type: ignore[arg-type]
