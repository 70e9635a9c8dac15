"""What a person sees: no wider than the terminal, figures whole, losses first, "-" for what is not known, no ANSI in a pipe."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.cli import main
from pytrace_ebpf.trace.losses import LOSS_CLASSES, LOST
from pytrace_ebpf.trace.schema import TABLES
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import summary, text
from pytrace_ebpf.view.by import BY
from pytrace_ebpf.view.grid import Listing
from pytrace_ebpf.view.head import cost_lines, head, interpreter_lines, loss_lines, native_lines, taken_lines, unserved_lines
from tests.unit.synthetic import GIL, Script, sample, write_trace

LONG = "a_function_with_a_name_" * 20
COMMAND = "python3 " + "--option-of-an-absurd-length=1 " * 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("sample"))


def absurd(path: Path, **more: Any) -> Path:
    """Long names, wide and hostile characters, days of time, a billion lost, no scheduling."""
    day = 86_400 * 10**9
    script = Script(4_000_000, 4_000_001)
    script.enter(0).enter(1).run(3 * day).enter(2).run(7).leave().enter(3).run(40 * day).leave().leave().leave()
    functions = [
        (0, "/very" * 60 + "/long.py", LONG, LONG, 2_000_000, "very." * 60),
        (1, "関数" * 80 + ".py", "関数", "関数" * 80, 1, "関数" * 80),
        (2, "\x1b[2Jevil\n.py", "\x1b]0;evil\x07", "\x1b]0;evil\x07", 1, "\r[red]evil"),
        (3, "", "f", "[bold]f[/bold]", -1, ""),
    ]
    losses = [("call_ring", 5, 9, 10**12), ("sched_ring", 5, 9, 1)]
    threads = [(4_000_000, 4_000_001, "fifteen letters", 0, None)]
    processes = [(4_000_000, 1, "/x" * 200, COMMAND, None, None, *GIL, 0, None)]
    target = {"pid": 4_000_000, "command": COMMAND, "executable": "/x" * 200, "python_version": "3.11.2+" + "x" * 200}
    rows = {"events": script.events, "functions": functions, "losses": losses, "threads": threads, "processes": processes}
    return write_trace(path, **rows, manifest={"target": target, "argv": COMMAND.split()} | more)


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main.main([str(w) for w in words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [(), ("--sort", "total"), *(("--by", by) for by in BY if by != "function" and not BY[by].of_samples), ("--compensate",)]
)
@pytest.mark.parametrize("columns", [60, 100, 400])
def test_a_line_fits_and_its_figures_are_whole(
    tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    add = Listing.add

    def add_whole(self: Listing, figures: Sequence[Any], *names: Any, style: str = "") -> None:
        add(self, figures, *names, style=style)
        for (width, title), cell in zip(self._figures, self._rows[-1][0], strict=True):
            assert cell_len(str(cell)) <= width and len(title) <= width
        assert sum(width + 1 for width, _ in self._figures) - 1 < columns

    monkeypatch.setattr(Listing, "add", add_whole)
    for trace in (path, absurd(tmp_path / "absurd")):
        out = shown(capsys, "report", trace, *options)
        plain = text.Text.from_ansi(out).plain
        assert "\x1b[2J" not in out and "\x07" not in out and "\r" not in out
        assert max(cell_len(line.rstrip()) for line in plain.splitlines()) <= columns
        assert "…" not in out or columns < 400 or trace != path


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_info_fits(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for trace in (path, absurd(tmp_path / "absurd")):
        assert max(cell_len(line.rstrip()) for line in shown(capsys, "info", trace).splitlines()) < columns


def test_a_narrow_terminal_has_names_above_their_figures() -> None:
    listing = Listing(60, [(6, "calls"), (6, "total"), (9, "optional")], ["first", "second"], may_go=["optional"])
    listing.add(["1", "2", "3"], lambda width: "a" * width, lambda width: "b" * width)
    wide = Listing(61, [(6, "calls"), (6, "total"), (9, "optional")], ["first", "second"])
    wide.add(["1", "2", "3"], lambda width: "a" * width, lambda width: "b" * width)
    narrow = Listing(20, [(6, "calls"), (6, "total"), (9, "optional")], ["name"], may_go=["optional"])
    narrow.add(["1", "2", "3"], lambda width: "a" * width)
    assert drawn(listing, 60) == [" calls  total  optional   first             second", f"     1      2         3   {'a' * 16}  {'b' * 16}"]
    assert drawn(wide, 61) == [" calls  total  optional   first             second", f"     1      2         3   {'a' * 16}  {'b' * 17}"]
    assert drawn(narrow, 20) == ["name", " calls  total", "a" * 20, "     1      2"]


def test_names_above_figures_stand_below_their_titles() -> None:
    listing = Listing(40, [(6, "calls"), (4, "a long title"), (6, "total")], ["first", "second"])
    listing.add(["1", "2", "3"], lambda _: "one", lambda _: "two")
    assert drawn(listing, 40) == [
        f"{'first':<19}  second",
        " calls a long title  total",  # a title is never cropped
        f"{'one':<19}  two",
        "     1            2      3",
    ]


def drawn(listing: Listing, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(listing)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_pipe_gets_no_ansi_and_the_names(path: Path) -> None:
    for command in ("report", "info"):
        run = [sys.executable, "-m", "pytrace_ebpf", command, str(path)]
        out = subprocess.run(run, check=True, capture_output=True, encoding="utf-8", env={"PYTHONUTF8": "1", "FORCE_COLOR": ""}).stdout
        assert "\x1b" not in out and "Nothing was lost." in out
    run = [sys.executable, "-m", "pytrace_ebpf", "report", str(path)]
    plain = subprocess.run(run, check=True, capture_output=True, env={"PYTHONIOENCODING": "ascii:replace", "PYTHONUTF8": "0"}).stdout
    assert b"##" in plain and b"xx GIL wait" in plain


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C", "LANG": "en_US.UTF-8"}, {"LC_ALL": "", "LANG": "POSIX"}])
def test_where_the_locale_is_c_the_report_is_ascii(path: Path, locale: dict[str, str]) -> None:
    run = [sys.executable, "-m", "pytrace_ebpf", "report", str(path)]
    for more in ({}, {"COLUMNS": "60"}):
        out = subprocess.run(run, check=True, capture_output=True, env=locale | more).stdout
        assert out.isascii() and b"xx GIL wait" in out and b"133us" in out


def test_a_heading_has_as_much_of_its_note_as_fits() -> None:
    assert text.title("Threads", "3 of 9; sorted by name; reversed", 27).plain == "Threads   3 of 9"
    assert text.title("Threads", "3 of 9; sorted by name; reversed", 32).plain == "Threads   3 of 9; sorted by name"
    assert text.title("Threads", "3 of 9", 12).plain == "Threads"


@pytest.mark.parametrize("width", [20, 30, 60, 200])
def test_a_legend_breaks_between_states(width: int) -> None:
    row = {"on_cpu_ns": 70, "runq_wait_ns": 470, "gil_wait_ns": 32, "blocked_ns": 428}
    lines = text.legend(row, False, width).plain.split("\n")
    assert max(map(cell_len, lines)) <= width
    assert [each for line in lines for each in line.split("   ")] == ["██ on CPU 7.0 %", "▒▒ run queue 47 %", "×× GIL wait 3.2 %", "·· blocked 43 %"]


def test_the_report_says_where_the_time_went(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "report", path)
    lines = out.splitlines()
    assert lines[1] == "1. `Worker.step` (work.py:31) computes 45 % of the time, 41.8ms. [--by function]" and lines.index("Nothing was lost.") < 12
    assert any("3 threads" in line and "136 calls" in line for line in lines)
    assert "133µs of CPU time" in out and "136 x 980ns" in " ".join(out.split())
    assert "python3 app.py" in lines
    (worker,) = [line.split() for line in lines if "/app/work.py:31" in line]
    assert worker[1:] == [
        "9",
        "62.8ms",
        "62.7ms",
        "41.8ms",
        "820µs",
        "20.0ms",
        "0",
        "Worker.step",
        "/app/work.py:31",
        "Worker.run",
        "/app/work.py:31",
    ]


def test_what_is_not_known_is_a_dash_and_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = absurd(tmp_path / "absurd", cost={"source": "usdt", "ns_per_call": None})
    out = shown(capsys, "report", trace)
    assert "was not measured" in out and "??" in out
    (line,) = [line for line in out.splitlines() if "[bold]f" in line and "self time" not in line]
    assert line.split()[1:8] == ["1", "960h", "960h", *"----"]
    row = next(r for r in json.loads(shown(capsys, "report", trace, "--json"))["rows"] if r["func_id"] == 3)
    assert row["on_cpu_ns"] is None and row["self_blocked_ns"] is None and row["unknown_ns"] == row["total_ns"]


@pytest.mark.parametrize(("ns_per_call", "source"), [(1_000, "usdt"), (100_000, "usdt"), (100_000, "agent")])
def test_a_cost_that_distorts_is_a_warning_with_what_to_do(path: Path, ns_per_call: int, source: str) -> None:
    facts = summary.summary(pytrace_ebpf.open(path))
    cost = {"source": source, "ns_per_call": ns_per_call, "native_calls": 0, "native_ns_per_call": None, "other_ns": 0, "cpu_ns": None}
    cost["total_ns"] = 136 * ns_per_call
    lines = cost_lines(facts | {"cost": cost}, 136, 300)
    loud = ns_per_call == 100_000
    assert {str(line.style) for line in lines} == {"yellow" if loud else ""}
    said = " ".join(line.plain for line in lines)
    assert said.startswith("Tracing cost about") and ("--compensate" in said) == loud and ("--source agent" in said) == (loud and source == "usdt")


def test_losses_and_a_cut_come_first_and_loudly(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    trace = absurd(tmp_path / "absurd", state="recording", end_ns=None)
    assert shown(capsys, "report", trace).startswith("NOT FINISHED")
    monkeypatch.setattr("pytrace_ebpf.view.summary.STALE_S", -1.0)
    monkeypatch.setattr("pytrace_ebpf.view.summary._STALE_SEGMENTS", -1.0)
    out = shown(capsys, "report", trace)
    assert out.startswith("CUT: the tracer ended")
    assert "LOST 1,000,000,000,000 function events within 4ns: calls" in out and "sched_ring" in out and "Nothing was lost" not in out
    facts = json.loads(shown(capsys, "info", trace, "--json"))
    assert facts["state"] == "cut" and facts["lost"] == {"call_ring": 10**12, "sched_ring": 1}


def test_json_has_the_documented_keys_and_whole_nanoseconds(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documented = (Path(__file__).parents[3] / "docs/reading-a-report.md").read_text()
    for by in ("function", "module", "thread", "core"):
        facts = json.loads(shown(capsys, "report", path, "--by", by, "--json", "--top", "2"))
        assert facts["by"] == by and len(facts["rows"]) == 2
        for key in {*facts, *facts["split"], *facts["cost"], *(k for row in facts["rows"] for k in row)}:
            assert f"`{key}`" in documented
        assert all(isinstance(v, int | str | None) for row in facts["rows"] for v in row.values())
    facts = json.loads(shown(capsys, "report", path, "--json", "--top", "0"))
    split = facts["split"]
    assert split["wall_ns"] == sum(split[k] for k in ("on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"))
    assert sum(r["self_ns"] for r in facts["rows"]) == split["wall_ns"]
    assert sum(r["calls"] for r in facts["rows"]) == facts["calls"]


def test_info_counts_calls_without_rebuilding_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sample(tmp_path / "sample")
    facts = json.loads(shown(capsys, "info", trace, "--json"))
    assert facts["calls"] == 136 and not (trace / "calls").exists()
    assert facts["tables"]["calls"] == {"rows": 0, "bytes": 0, "parts": 0}
    assert facts["bytes_per_call"] == pytest.approx(facts["tables"]["events"]["bytes"] / 136)
    shown(capsys, "report", trace)
    shown(capsys, "report", trace, "--by", "wait")
    pytrace_ebpf.open(trace).calls(["call_id"])
    again = json.loads(shown(capsys, "info", trace, "--json"))
    assert again["tables"]["calls"]["rows"] == 136
    assert again["tables"]["waits"]["rows"] == len(pytrace_ebpf.open(trace).waits()) > 0
    assert again["bytes"] == facts["bytes"]  # of what was recorded
    derived = sum(again["tables"][name]["bytes"] for name, table in TABLES.items() if table.derived)
    assert facts["derived_bytes"] == 0 and again["derived_bytes"] > derived > 0


def test_by_thread_and_core_agree_on_the_time_on_cores(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = json.loads(shown(capsys, "report", path, "--by", "thread", "--json"))["rows"]
    cores = json.loads(shown(capsys, "report", path, "--by", "core", "--json"))["rows"]
    assert {t["name"] for t in threads} == {c["name"] for c in cores} == {"python3", "worker-1", "worker-2"}
    for thread in threads:
        busy = sum(c["busy_ns"] for c in cores if c["tid"] == thread["tid"])
        assert thread["on_cpu_ns"] == busy
        states = ("on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "unknown_ns")
        assert thread["wall_ns"] == sum(thread[s] for s in states)


@pytest.mark.parametrize(
    ("ns", "looks"),
    [
        (0, "0"),
        (999, "999ns"),
        (9_995, "10.0µs"),
        (999_500, "1.00ms"),
        (12_345_678, "12.3ms"),
        (10**9, "1.00s"),
        (3600 * 10**9, "60min"),
        (None, "-"),
    ],
)
def test_durations_have_three_figures(ns: int | None, looks: str) -> None:
    assert text.duration(ns) == looks


def test_no_duration_is_wider_than_its_column() -> None:
    assert all(len(text.duration(d * 10**e)) <= 6 for e in range(14) for d in (1, 9, 94, 99, 995, 999, 9999))


@pytest.mark.parametrize("parts", [[1, 1, 1], [0, 0, 5], [10**15, 1, 1], [0, 0, 0], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("cells", [1, 8, 99])
def test_a_bar_has_exactly_its_cells(parts: list[int], cells: int) -> None:
    assert sum(text.allot(parts, cells)) == (cells if sum(parts) else 0)


def test_names_keep_their_ends() -> None:
    place = text.function("Worker.run", "/usr/lib/site-packages/shop/orders.py", 7, 32).plain
    assert place == "Worker.run  shop/orders.py:7"
    assert text.function("A.very.long.qualified.name", "x.py", 7, 10).plain == "…fied.name"


def test_the_head_fits_when_nothing_is_known() -> None:
    facts = {"state": "complete", "lost": {}, "losses": [], "target": {}, "wall_ns": 0, "processes": 0, "threads": 0}
    assert next(line.plain for line in head(facts, 0, 60)) == "(unknown program)"


def test_what_native_layers_could_not_get_is_said_first() -> None:
    sentence = "no library of PyTorch was loaded, so --layers torch recorded nothing"
    assert [str(line) for line in native_lines({"native": {"missing": [sentence]}}, 200)] == [sentence]
    assert native_lines({"native": None}, 200) == []


def test_the_process_of_a_thread_is_never_cut() -> None:
    assert [text.thread("MainThread", pid, 20) for pid in (None, 12, 123456)] == ["MainThread", "MainThread of pid 12", "MainT… of pid 123456"]


def test_what_was_traced_is_broken_between_its_parts() -> None:
    facts = {"target": {"pid": 7, "python_version": "3.11.2", "command": "app"}, "processes": 1, "threads": 12, "wall_ns": 10**9, "lost": {}}
    facts |= {"losses": [], "state": "complete"}
    lines = [line.plain for line in head(facts, 12_345, 60)]
    assert "Python 3.11.2   pid 7   1.00s recorded   12 threads" in lines and "12,345 calls" in lines


def test_processes_without_calls_for_one_reason_are_one_sentence() -> None:
    reasons = {
        1: "process 1 ended while it was looked at",
        2: "process 2 (sh) has already ended.",
        3: "process 3 (bash) has already ended",
        4: "it is static",
    }
    facts = {"sources": [{"pid": pid, "source": None, "why": why} for pid, why in reasons.items()]}
    assert [line.plain for line in unserved_lines(facts, 200)] == [
        "No calls of process 1: process 1 ended while it was looked at.",
        "No calls of process 2, 3: each has already ended.",
        "No calls of process 4: it is static.",
    ]


def test_threads_that_another_profiler_took_are_named() -> None:
    sources = [{"pid": 7, "source": "agent", "why": "", "threads_taken": 2}, {"pid": 8, "source": "agent", "why": ""}]
    (line,) = taken_lines({"sources": sources}, 200)
    assert (
        line.plain == "Process 7 gave 2 threads a profile function of its own (cProfile, sys.setprofile): their calls from then on are not recorded."
    )


@pytest.mark.parametrize(
    ("source", "version", "said"),
    [
        ("agent", "3.13.0", "2 interpreters beside its main one: calls in them are not"),
        ("usdt", "3.11.2", ""),
        ("usdt", "3.15.0", ""),
        ("sample", "3.11.2", "calls in them have no stacks here"),
        ("sample", "3.12.1", ""),
    ],
)
def test_interpreters_beside_the_main_one_are_named(source: str, version: str, said: str) -> None:
    facts = {"interpreters": [{"pid": 7, "source": source, "python_version": version, "others": 2, "recorded": 0}]}
    lines = " ".join(line.plain for line in interpreter_lines(facts, 200))
    assert said in lines and bool(said) == bool(lines)


@pytest.mark.parametrize(("recorded", "said"), [(1, "calls in them are recorded for 1 of them alone"), (2, ""), (3, "")])
def test_of_how_many_interpreters_calls_are_recorded_is_said(recorded: int, said: str) -> None:
    facts = {"interpreters": [{"pid": 7, "source": "agent", "python_version": "3.13.0", "others": 2, "recorded": recorded}]}
    lines = " ".join(line.plain for line in interpreter_lines(facts, 200))
    assert said in lines and bool(said) == bool(lines)


def test_one_of_a_kind_is_no_plural() -> None:
    assert [plural(number, "process") for number in (0, 1, 2000)] == ["0 processes", "1 process", "2,000 processes"]
    for number, said in ((1, "There is 1 sample with unknown native"), (2, "There are 2 samples with unknown native")):
        facts = {"lost": {"sample_native": number}, "losses": [], "state": "complete", "sources": []}
        assert loss_lines(facts, 200)[1][0].plain.startswith(said)
    for name in LOSS_CLASSES:
        one, several = (
            " ".join(
                line.plain for lines in loss_lines({"lost": {name: number}, "losses": [], "state": "complete", "sources": []}, 2000) for line in lines
            )
            for number in (1, 1234)
        )
        assert name in LOST and " 1 " in one and " 1,234 " in several and one.replace(" 1 ", " 1,234 ") != several
