"""Standard streams that are full, closed, or read by nobody: one sentence, an exit code that is not diff's, and never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytrace_ebpf import units
from pytrace_ebpf.cli import main
from tests.conftest import PATIENCE_S, REPOSITORY
from tests.unit.synthetic import sample

COMMANDS = {
    "help": "--help",
    "version": "--version",
    "help of one": "help export",
    "completion": "completion bash",
    "report": "report {trace}",
    "report as JSON": "report {trace} --json",
    "report by line": "report {trace} --by line",
    "info": "info {trace}",
    "info as JSON": "info {trace} --json",
    "diff": "diff {trace} {trace} --fail-over 50%",
    "diff as JSON": "diff {trace} {trace} --json",
    **{name: f"export {{trace}} --to {name} -o -" for name in ("folded", "pprof")},
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("streams") / "trace")


def ended(trace: Path, command: str, streams: str, buffered: bool = True, **more: str) -> tuple[int, str]:
    """Exit code, and what was said, of a command whose streams a shell set up; `buffered`: Python's own buffer is there."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "COLUMNS")}
    words = ["env", *(f"{name}={value}" for name, value in more.items()), sys.executable, *(() if buffered else ("-u",)), "-m", "pytrace_ebpf"]
    said = subprocess.run(
        ["bash", "-c", f'exec "$@" {streams}', "sh", *words, *command.format(trace=trace).split()],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return said.returncode, said.stderr


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("streams", [">/dev/full", ">&- <&-"])
def test_standard_output_that_takes_nothing_is_one_sentence(trace: Path, command: str, streams: str) -> None:
    code, said = ended(trace, command, streams)
    why = "it is closed" if ">&-" in streams else "No space left on device"
    assert (code, said) == (4, f"pytrace-ebpf: standard output cannot be written ({why}); what was to be printed is not whole\n")


@pytest.mark.parametrize("command", ["--help", "report {trace}", "export {trace} --to folded -o -"])
def test_the_same_without_a_buffer(trace: Path, command: str) -> None:
    code, said = ended(trace, command, ">/dev/full", buffered=False)
    assert code == 4 and said.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_nobody_who_reads_is_no_error(trace: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        said = subprocess.run(
            [sys.executable, "-m", "pytrace_ebpf", *command.format(trace=trace).split()],
            cwd=REPOSITORY, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (said.returncode, said.stderr) == (141, "")


@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", "2>&- <&-"])
@pytest.mark.parametrize(("command", "code"), [("report {trace}", 0), ("report nothing", 5), ("report", 2), ("export {trace} --to folded -o -", 0)])
def test_standard_error_that_takes_nothing_changes_no_exit_code(trace: Path, command: str, code: int, streams: str) -> None:
    assert ended(trace, command, streams) == (code, "")


@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"COLUMNS": "1"}, {"COLUMNS": "0"}, {"TERM": "no-such"},
     {"TERM": ""}, {"HOME": "/nonexistent"}, {"LC_ALL": "xx_YY.none"}],
    ids=lambda each: "=".join(*each.items()),
)  # fmt: skip
def test_a_strange_environment_is_no_reason_to_say_nothing(trace: Path, environment: dict[str, str], tmp_path: Path) -> None:
    assert ended(trace, "report {trace}", f">{tmp_path}/out", **environment) == (0, "")
    assert len((tmp_path / "out").read_bytes().split()) > 10


def test_a_directory_that_is_gone_is_one_sentence(trace: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    words = f"import os, sys; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); "
    words += "from pytrace_ebpf.cli.main import main; sys.argv[1:] = {}; sys.exit(main())"
    for command in (["export", str(trace), "--to", "folded"], ["report", "trace"], ["report", str(trace), "--html", "page.html"]):
        said = subprocess.run(
            [sys.executable, "-c", words.format(command)], env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert said.returncode in (2, 4, 5) and said.stderr.startswith("pytrace-ebpf: ") and said.stderr.count("\n") == 1, said.stderr


def test_too_little_memory_is_no_damage(trace: Path) -> None:
    words = "import resource, sys; from pytrace_ebpf.cli.main import main; import pandas, pyarrow.dataset; used = int(open('/proc/self/statm').read().split()[0]) * 4096; "
    words += f"resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20),) * 2); sys.argv[1:] = ['report', {str(trace)!r}]; sys.exit(main())"
    said = subprocess.run([sys.executable, "-c", words], cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert said.returncode == 4 and "memory" in said.stderr and "damaged" not in said.stderr, said.stderr


@pytest.mark.parametrize("digits", [40, 400, 4000])
def test_an_amount_beyond_all_bounds_is_none(digits: int) -> None:
    number = "9" * digits
    assert units.size(f"{number}T") == 0 and units.seconds(f"{number}d") is None
    for words in (("attach", "1", "--max-size", f"{number}T"), ("attach", "1", "--retain", f"{number}d"), ("attach", "1", "--ring-mib", number),
                  ("attach", "1", "--max-depth", number), ("attach", "1", "--duration", number * 2)):  # fmt: skip
        assert main.main(words) == 2


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", "-1", "1e30"])
@pytest.mark.parametrize("option", ["--ring-mib", "--sample", "--duration", "--max-depth", "--retain", "--max-size", "--budget", "--native-memory"])
def test_no_number_that_is_none_gets_in(option: str, value: str) -> None:
    assert main.main(("attach", "1", option, value)) == 2
