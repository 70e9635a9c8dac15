"""--from, --to, --pid and --tid: every report and export of a piece of a trace, and what is no piece of it."""

import json
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.export import FORMATS
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.units import nanoseconds
from pytrace_ebpf.view.by import BY
from tests.unit.synthetic import sample

WINDOW = ["--from", "0.01", "--until", "20ms"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("options") / "trace")


def facts(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> dict[str, Any]:
    assert main(["report", str(path), "--json", *words]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


@pytest.mark.parametrize("by", [name for name, by in BY.items() if not by.of_samples])
@pytest.mark.parametrize("words", [WINDOW, [*WINDOW, "--tid", "4001"], ["--pid", "4000"], ["--tid", "4002", "--until", "0.03s"]])
def test_every_report_of_a_window_keeps_its_sums(capsys: pytest.CaptureFixture[str], path: Path, by: str, words: list[str]) -> None:
    said = facts(capsys, path, "--by", by, *words)
    assert said["wrong_sums"] == [] and said["calls"] == len(pytrace_ebpf.open(path).window(**window_of(path, words)).calls())
    split = said["split"]
    assert split["wall_ns"] == sum(part for name, part in split.items() if name != "wall_ns")
    if by == "thread":
        assert all(row["wall_ns"] == sum(row[name] for name in split if name != "wall_ns") for row in said["rows"])
        assert all(row["wall_ns"] == said["wall_ns"] for row in said["rows"]) or "--from" not in words
    assert main(["report", str(path), "--by", by, *words]) == 0
    assert ("from 10.0ms to 20.0ms of 54.7ms" in capsys.readouterr().out) == ("--from" in words)


def window_of(path: Path, words: list[str]) -> dict[str, int]:
    start = pytrace_ebpf.open(path).start_ns
    said = dict(zip(words[::2], words[1::2], strict=True))
    times = {"--from": "start_ns", "--to": "end_ns", "--until": "end_ns"}
    return {name: start + nanoseconds(said[option]) for option, name in times.items() if option in said} | {
        name: int(said[f"--{name}"]) for name in ("pid", "tid") if f"--{name}" in said
    }


def test_with_what_tracing_cost_taken_off(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert facts(capsys, path, *WINDOW, "--compensate")["calls"] == facts(capsys, path, *WINDOW)["calls"]


@pytest.mark.parametrize("to", FORMATS)
def test_every_export_of_a_window(tmp_path: Path, path: Path, to: str) -> None:
    whole, piece = tmp_path / "whole", tmp_path / "piece"
    assert main(["export", str(path), "--to", to, "-o", str(whole)]) == 0
    assert main(["export", str(path), "--to", to, "-o", str(piece), "--from", "10ms", "--until", "20ms"]) == 0
    assert 0 < piece.stat().st_size < whole.stat().st_size


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "x"], "is not a time"), (["--until", "1s2"], "is not a time"), (["--from", "-1"], ""),
        (["--until", "٣"], "is not a time"), (["--from", "9" * 99], "is not a time"),
        (["--from", "20ms", "--until", "10ms"], "later"), (["--from", "5"], "54.7ms long"), (["--until", "0"], "later"), (["--pid", "1"], "4000"), (["--tid", "7"], "4001"),
    ],
)  # fmt: skip
def test_an_invalid_window_is_one_sentence(capsys: pytest.CaptureFixture[str], path: Path, words: list[str], told: str) -> None:
    try:
        code = main(["report", str(path), *words])
    except SystemExit as exit_:  # argparse takes -1 for an option
        code = exit_.code if isinstance(exit_.code, int) else 1
    assert code == UsageError.exit_code
    said = capsys.readouterr().err
    assert told in said and (not told or said.count("\n") == 1) and "Traceback" not in said


def test_times_as_people_write_them() -> None:
    assert [nanoseconds(said) for said in ("12", "12.5", "90s", "1m30s", "1h1m1s", "250ms", "7us", "7µs", "3ns", "0")] == [
        12 * 10**9, 12_500_000_000, 90 * 10**9, 90 * 10**9, 3661 * 10**9, 250 * 10**6, 7000, 7000, 3, 0,
    ]  # fmt: skip
