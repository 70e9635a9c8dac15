"""Experiments: settings, what is compared with what, and how it is shown; from traces made by hand."""

import json
import os
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.cells import cell_len

import pytrace_ebpf
from pytrace_ebpf.cli import experiment as command
from pytrace_ebpf.cli import main
from pytrace_ebpf.errors import TargetError, TraceError, UsageError
from pytrace_ebpf.experiment import compare
from pytrace_ebpf.experiment import settings as of_settings
from pytrace_ebpf.experiment.data import DATASET, SCHEMA, Experiment, open_experiment
from pytrace_ebpf.experiment.paths import PARTS
from pytrace_ebpf.experiment.sentence import sentences
from pytrace_ebpf.experiment.settings import THREAD_VARIABLES, Setting, core_list, settings
from pytrace_ebpf.runs import repeated
from pytrace_ebpf.view.grid import Listing
from tests.unit.synthetic import Row, Script, write_trace

MS = 1_000_000
ONE, TWO = "cpus=0", "cpus=0,1"
MAIN, LOAD, FIT, CONV, ODD = range(5)
FUNCTIONS: list[Row] = [
    (MAIN, "/app/main.py", "main", "main", 1, "main"),
    (LOAD, "/app/data.py", "load", "load", 11, "data"),
    (FIT, "/app/net.py", "fit", "Net.fit", 21, "net"),
    (CONV, "", "aten::conv1d", "aten::conv1d.padding", -1, "<operator>", 0, "operator"),
    (ODD, "/app/odd.py", "odd", "odd", 41, "odd"),
]


@pytest.fixture
def damaged(done: Experiment, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(done.directory, tmp_path / "copy"))


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


def one_run(path: Path, conv: int, queued: int = 0, odd: bool = False, functions: list[Row] = FUNCTIONS) -> Path:
    """main: load (10 ms, 4 of them blocked), fit: conv (`conv` ms, of which `queued` in the run queue), fit again within it, and odd."""
    script = Script(10, 10).snapshot().enter(MAIN).enter(LOAD).run(6 * MS).wait(4 * MS - 5_000).leave()
    script.enter(FIT).run(MS).enter(CONV).run((conv - queued) * MS)
    if queued:
        script.preempted(queued * MS, by=99)
    script.leave().enter(FIT).run(2 * MS).leave()
    if odd:
        script.enter(ODD).run(20 * MS).leave()
    script.leave().leave()
    processes = [(10, 1, "/usr/bin/python3", "python3 app.py", "3.11.2", "usdt", 0, 0, 0, script.now + MS)]
    return write_trace(path, events=script.events, sched=script.sched, functions=functions, processes=processes, end_ns=script.now + 2 * MS)


def settle(directory: Path, *rows: tuple[str, int]) -> Experiment:
    described = [{"setting": name, "cpus": None, "threads": None, "cores": cores} for name, cores in rows]
    return Experiment(directory, ["python3", "app.py"], described, [])


def add(experiment: Experiment, setting: str, repeat: int, **how: Any) -> None:
    folder = experiment.directory / "traces" / setting.replace(" ", "_")
    trace = one_run(folder / str(repeat), **how)
    experiment.add(pytrace_ebpf.open(trace), setting, repeat, folder / f"{repeat}.log")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """One core against two: conv 100, 90, 110 ms against 60, 50, 70 of which 20, 10, 30 queued; odd in one run of the second."""
    made = settle(tmp_path_factory.mktemp("done"), (ONE, 1), (TWO, 2))
    for repeat, conv in enumerate((100, 90, 110), 1):
        add(made, ONE, repeat, conv=conv)
        add(made, TWO, repeat, conv=conv - 40, queued=conv - 80, odd=repeat == 2)
    return made


def row_of(table: pd.DataFrame, setting: str, **key: object) -> dict[str, Any]:
    for name, value in {"setting": setting, **key}.items():
        table = table[table[name] == value]
    (row,) = table.to_dict("records")
    return row


# -- settings ------------------------------------------------------------------------


def test_settings_are_every_combination_in_the_order_given() -> None:
    names = [s.name for s in settings(["0", "1,0", "0-2", "0-0"], [2, 1, 2])]
    assert names == [f"cpus={c} threads={t}" for c in ("0", "0,1", "0-2") for t in (2, 1)]
    assert [s.name for s in settings([], [])] == ["as is"]
    assert [s.name for s in settings([], [1])] == ["threads=1"]
    assert [s.name for s in settings(["0"], [], ["on", "off", "on"])] == ["cpus=0 gil=on", "cpus=0 gil=off"]


@pytest.mark.parametrize(("text", "cores"), [("0", (0,)), ("2,0", (0, 2)), ("0-3", (0, 1, 2, 3)), ("0-3:2", (0, 2)), ("0-1,3", (0, 1, 3))])
def test_core_lists_are_tasksets(text: str, cores: tuple[int, ...]) -> None:
    assert core_list(text) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "-1", "0,,1", "0-3:0", "4", "0-9"])
def test_other_core_lists_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cpus"):
        core_list(text)


def test_a_setting_knows_its_cores_words_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_settings.shutil, "which", lambda name: f"/bin/{name}")
    assert [Setting((0, 2), 8).cores, Setting(None, 2).cores, Setting(None, 9).cores, Setting().cores] == [2, 2, 4, 4]
    assert Setting((0, 2)).command(["python3", "x"]) == ["/bin/taskset", "-c", "0,2", "python3", "x"]
    assert Setting(None, 1).command(["python3", "x"]) == ["python3", "x"]
    assert Setting(None, 3).environment == dict.fromkeys(THREAD_VARIABLES, "3") and not Setting((0,)).environment
    assert [Setting(gil=gil).environment for gil in ("on", "off")] == [{"PYTHON_GIL": "1"}, {"PYTHON_GIL": "0"}]
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} <= set(THREAD_VARIABLES)


# -- comparing -----------------------------------------------------------------------


def test_speed_up_and_efficiency_are_of_medians(done: Experiment) -> None:
    row = row_of(compare.compare(done, "operator", "self"), TWO)
    assert (row["qualname"], row["wall_ns"], row["low_ns"], row["high_ns"]) == ("aten::conv1d.padding", 60 * MS, 50 * MS, 70 * MS)
    assert (row["on_cpu_ns"], row["runq_wait_ns"], row["calls"]) == (40 * MS, 20 * MS, 1)
    assert row["speed_up"] == pytest.approx(100 / 60) and row["efficiency"] == pytest.approx(100 / 120)
    assert row["clear"] and row["unaligned_ns"] == 0


@pytest.mark.parametrize("by", [by for by in compare.KEYS if by != "nn.Module"])
@pytest.mark.parametrize("sort", compare.SORTS)
def test_the_parts_sum_to_the_median_and_the_first_is_its_own_measure(done: Experiment, by: str, sort: str) -> None:
    table = compare.compare(done, by, sort)
    assert (table[list(PARTS)].sum(axis=1) == table["wall_ns"]).all() and len(table)
    assert (table.loc[(table["setting"] == ONE) & (table["wall_ns"] > 0), "speed_up"] == 1).all()


def test_total_time_counts_a_function_within_itself_once(done: Experiment) -> None:
    functions = compare.compare(done, "function", "total")
    fit = row_of(functions, ONE, qualname="Net.fit")
    assert (fit["wall_ns"], fit["calls"]) == (103 * MS, 2)
    assert row_of(compare.compare(done, "function", "self"), ONE, qualname="Net.fit")["wall_ns"] == 3 * MS
    assert "aten::conv1d.padding" not in set(functions["qualname"])


def test_modules_hold_operators_too(done: Experiment) -> None:
    table = compare.compare(done, "module", "self")
    assert set(table["module"]) == {"main", "data", "net", "<operator>", "odd"}
    data = row_of(table, TWO, module="data")
    assert (data["wall_ns"], data["blocked_ns"], data["clear"]) == (10 * MS, 4 * MS - 5_000, False)


def test_a_path_that_only_one_setting_has_is_said(done: Experiment) -> None:
    (only,) = compare.only_in_some(done).to_dict("records")
    assert (only["qualname"], only["setting"], only["self_wall_ns"]) == ("odd", TWO, 20 * MS)
    assert compare.chains(done, [only["path_id"]]) == {only["path_id"]: ["main", "Net.fit", "odd"]}
    table = compare.compare(done, "function", "total")
    odd = table[table["qualname"] == "odd"]
    # In one run of three: its median is none at all.
    assert list(odd["setting"]) == [TWO] and odd["wall_ns"].item() == 0 and odd["high_ns"].item() == 20 * MS
    assert odd["speed_up"].isna().all()


def test_what_is_not_common_to_all_is_in_unaligned_ns(tmp_path: Path) -> None:
    made = settle(tmp_path, (ONE, 1), (TWO, 1))
    add(made, ONE, 1, conv=10)
    add(made, TWO, 1, conv=10, odd=True)
    table = compare.compare(made, "function", "total")
    assert row_of(table, TWO, qualname="odd")["unaligned_ns"] == 20 * MS
    assert row_of(table, TWO, qualname="Net.fit")["unaligned_ns"] == 0


def test_of_two_runs_it_is_the_mean_and_of_one_nothing_is_chance(tmp_path: Path) -> None:
    made = settle(tmp_path, (ONE, 1), (TWO, 1))
    add(made, ONE, 1, conv=10)
    add(made, ONE, 2, conv=20)
    add(made, TWO, 1, conv=40, queued=30)
    table = compare.compare(made, "operator", "self")
    first, second = row_of(table, ONE), row_of(table, TWO)
    assert (first["wall_ns"], first["on_cpu_ns"], first["low_ns"], first["high_ns"]) == (15 * MS, 15 * MS, 10 * MS, 20 * MS)
    assert second["speed_up"] == pytest.approx(15 / 40) and pd.isna(second["clear"])


def test_runs_are_compared_by_the_programs_life(done: Experiment) -> None:
    row = row_of(compare.whole_runs(done), ONE)
    assert row["wall_ns"] == (10 + 103 + 1) * MS and row["calls"] == 5
    assert row["cores_busy"] == pytest.approx((6 + 103) / 114, rel=1e-3)


def test_functions_are_the_same_under_other_numbers(tmp_path: Path) -> None:
    made = settle(tmp_path, (ONE, 1), (TWO, 1))
    add(made, ONE, 1, conv=10)
    swapped = [(number, *FUNCTIONS[at][1:]) for number, at in enumerate((MAIN, FIT, LOAD, CONV, ODD))]
    add(made, TWO, 1, conv=10, functions=swapped)
    table = compare.compare(made, "function", "total")
    assert row_of(table, ONE, qualname="Net.fit")["wall_ns"] == 13 * MS
    assert row_of(table, TWO, qualname="Net.fit")["wall_ns"] == 10 * MS  # it is what load does under that number


# -- the directory -------------------------------------------------------------------


def test_the_data_set_is_one_of_parquet_with_settings(done: Experiment) -> None:
    table = pd.read_parquet(done.directory / DATASET)
    assert list(table.columns) == SCHEMA.names
    assert table.groupby("setting", observed=True)["repeat"].unique().map(sorted).to_dict() == {ONE: [1, 2, 3], TWO: [1, 2, 3]}
    assert table.groupby(["setting", "repeat"], observed=True)["calls"].sum().to_dict()[TWO, 2] == 6


def test_an_experiment_opens_again_also_where_runs_are_missing(done: Experiment, damaged: Path) -> None:
    assert open_experiment(done.directory) == done
    again = open_experiment(damaged)
    again.runs = again.runs[:1]
    again.save()
    assert list(compare.whole_runs(open_experiment(damaged))["setting"]) == [ONE]


def test_what_is_no_experiment_is_refused(tmp_path: Path, damaged: Path) -> None:
    with pytest.raises(TraceError, match="not an experiment"):
        open_experiment(damaged / "traces")
    settle(tmp_path, (ONE, 1)).save()
    with pytest.raises(TraceError, match="no finished run"):
        open_experiment(tmp_path)
    next((damaged / DATASET).glob("*-001-003.parquet")).write_bytes(b"broken")
    with pytest.raises(TraceError, match=r"part-001-003\.parquet does not open"):
        compare.compare(open_experiment(damaged), "function", "self")


# -- the command ---------------------------------------------------------------------


@pytest.mark.parametrize("by", [None, *compare.KEYS])
def test_the_report_fits_the_screen_and_names_what_counts(done: Experiment, by: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["experiment", "--report", str(done.directory), *(["--by", by] if by else [])]
    assert main.main(words) == 0
    out = capsys.readouterr().out
    assert max(map(cell_len, out.splitlines())) <= 100 and "\x1b" not in out
    assert "1.67x" in out or by in ("function", "nn.Module")
    assert ("Operators by self time" in out) == (by in (None, "operator"))
    assert f"only {TWO}:  main > Net.fit > odd" in out
    assert not list(done.directory.glob("*.png"))


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("by", [None, "path"])
def test_no_figure_is_cropped(
    done: Experiment, by: str | None, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    add_row = Listing.add

    def add_whole(self: Listing, figures: Sequence[Any], *names: Any, style: str = "") -> None:
        add_row(self, figures, *names, style=style)
        assert sum(width + 1 for width, _ in self._figures) - 1 < columns
        assert all(max(cell_len(str(cell)), len(title)) <= width for (width, title), cell in zip(self._figures, self._rows[-1][0], strict=True))

    monkeypatch.setattr(Listing, "add", add_whole)
    assert main.main(["experiment", "--report", str(done.directory), *(["--by", by] if by else [])]) == 0
    assert max(cell_len(line.rstrip()) for line in capsys.readouterr().out.splitlines()) < columns


def test_the_report_says_what_was_lost_and_what_changed(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lossy = open_experiment(damaged)
    for run in lossy.runs:
        run["lost"] = 7
    lossy.save()
    main.main(["experiment", "--report", str(damaged), "--by", "operator"])
    out = capsys.readouterr().out
    assert out.startswith("LOST 42 events")
    line = next(line for line in out.splitlines() if " 1.67x" in line)
    assert line.split()[-6:] == ["-60.0ms", "+20.0ms", "0", "0", "0", "cpus=0,1"]


def test_the_sentence_names_what_changed_most_of_all_kinds(done: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    most = "The operator `aten::conv1d.padding` changes most: 40.0ms less of its own time (60.0ms less on a core), beyond the spread of the repeats."
    for words in ([], ["--by", "function"], ["--by", "path", "--sort", "total"]):  # whatever the tables are of
        main.main(["experiment", "--report", str(done.directory), *words])
        assert most in " ".join(capsys.readouterr().out.split("Whole runs")[0].split())


def test_what_one_setting_alone_has_changes_too(tmp_path: Path) -> None:
    for repeats, sure in ((1, "of one run each, so it may be chance"), (2, "beyond the spread of the repeats")):
        for odd_first in (True, False):
            made = settle(tmp_path / f"{repeats}{odd_first}", (ONE, 1), (TWO, 2))
            for repeat in range(1, repeats + 1):
                add(made, ONE, repeat, conv=100, odd=odd_first)
                add(made, TWO, repeat, conv=100, odd=not odd_first)
            said = sentences(made, compare.whole_runs(made), {by: compare.compare(made, by, "self") for by in compare.levels(made)})
            assert f"The function `odd` changes most: 20.0ms {'less' if odd_first else 'more'} of its own time" in said[0] and said[0].endswith(
                f"{sure}."
            )


def test_json_has_everything_as_integers_and_null(done: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["experiment", "--report", str(done.directory), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["by"]) == {"function", "operator", "module"} and len(facts["runs"]) == 6
    assert isinstance(row_of(pd.DataFrame(facts["by"]["operator"]), TWO)["wall_ns"], int)
    assert facts["whole"][0]["clear"] is None


def test_pictures_are_drawn_where_asked(done: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["experiment", "--report", str(done.directory), "--plot", str(tmp_path / "pictures")]) == 0
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    assert set(drawn) == {f"{by}s.{suffix}" for by in ("function", "operator", "module") for suffix in ("png", "svg")}
    assert all(content[1:4] == b"PNG" for name, content in drawn.items() if name.endswith("png"))
    assert b"<svg" in drawn["operators.svg"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--cpus", "0"], 2),
        (["--cpus", "77", "--", "true"], 2),
        (["--threads", "0", "--", "true"], 2),
        (["--repeat", "0", "--", "true"], 2),
        (["--", "no-such-program-at-all"], 3),
        (["--report", "/nowhere"], 5),
        (["--report", "x", "--cpus", "0"], 2),
        (["--report", "x", "--repeat", "3"], 2),
        (["--report", "x", "--include", "y"], 2),
        (["--report", "x", "-o", "y"], 2),
        (["--report", "x", "--", "true"], 2),
        (["--report", "x", "--json", "--top", "3"], 2),
        (["--rootless", "--source", "usdt", "--", "true"], 2),
        (["--report", "x", "--top", "-1"], 2),
    ],
)
def test_what_cannot_be_is_one_sentence(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main.main(["experiment", *words]) == code
        assert capsys.readouterr().err.count("\n") == 1
    except SystemExit as stop:
        assert stop.code == code


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main.main(["experiment", "-o", str(tmp_path), "--", sys.executable]) == 2
    assert "not empty" in capsys.readouterr().err and [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_runs_take_turns_with_the_options_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str]]] = []

    def record(words: list[str], options: list[str], log: Path, stopped: object, under: str, environment: dict[str, str]) -> None:
        seen.append((under, options))
        one_run(Path(options[-1]), conv=10)

    monkeypatch.setattr(repeated, "record", record)
    words = ["--cpus", "0", "--cpus", "0,1", "--repeat", "2", "--source", "agent", "--include", "a", "--include", "b", "--ring-mib", "0.5"]
    out = tmp_path / "out"
    assert main.main(["experiment", *words, "-o", str(out), "--", sys.executable, "--source", "x"]) == 0
    assert [name for name, _ in seen] == [ONE, TWO, ONE, TWO]
    given = ["--source", "agent", "--include", "a", "--include", "b", "--ring-mib", "0.5", "-q", "-o"]
    assert seen[3][1] == [*given, str(out / "traces" / TWO / "2")]
    assert {p.name for p in out.iterdir()} == {
        "experiment.json",
        "calls-by-path",
        "traces",
        "functions.png",
        "functions.svg",
        "modules.png",
        "modules.svg",
        "operators.png",
        "operators.svg",
    }


def test_every_option_of_run_can_be_given_again() -> None:
    parser = ArgumentParser()
    command.add_arguments(parser)
    again = ArgumentParser()
    command.run_command.add_arguments(again)
    given = ["--exclude", "x", "--max-depth", "4", "--no-follow", "--rootless", "--layers", "torch,blas"]
    args = parser.parse_args([*given, "-q", "-o", "x", "--", "true"])
    assert again.parse_args(command._again(args)) == again.parse_args(given)
    assert command._again(parser.parse_args(["--", "true", "--source", "usdt"])) == []


def test_a_failed_run_passes_on_the_tracers_sentence(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    log.write_text("Traceback ...\nValueError: no\n")
    failure = repeated._failure("cpus=0", 1, log)
    assert isinstance(failure, TargetError) and "exit code 1 under cpus=0" in str(failure) and "ValueError: no" in str(failure)
    log.write_text("pytrace-ebpf: this kernel cannot.\n")
    assert (str(repeated._failure("", 4, log)), repeated._failure("", 4, log).exit_code) == ("this kernel cannot.", 4)
