"""Views of traces made without eBPF: two states instead of four, a line that says why, and exports that hold."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import COLUMNS, by_function, overall
from pytrace_ebpf.analyze.time.by_core import by_core
from pytrace_ebpf.analyze.time.by_thread import by_thread
from pytrace_ebpf.cli import main
from pytrace_ebpf.cli.export import FORMATS
from pytrace_ebpf.derive.scheduling import split
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import MANIFEST, SYSCALL_UNKNOWN, SchedKind
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view.export import folded
from tests.unit.synthetic import sample, table_of

pytestmark = pytest.mark.measured

WAITS = list(SPLIT[1:])
MS = 1_000_000


def rewrite(whole: Path, path: Path, source: str | None) -> Path:
    """The sample as a recorder with less to go by would have written it."""
    shutil.copytree(whole, path)
    trace = pytrace_ebpf.open(whole)
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["scheduling"] = {"source": source, "why": "the kernel did not permit more"}
    shutil.rmtree(path / "sched")
    table = {"perf": "sched", "cputime": "cputime", None: "usage"}[source]
    rows = {"perf": switches, "cputime": samples, None: lambda _: pd.DataFrame({"ts": []})}[source](trace)
    for segment in manifest["segments"]:
        here = rows[(rows["ts"] >= segment["start_ns"]) & (rows["ts"] < segment["end_ns"])]
        segment["rows"]["sched"] = 0
        if source:
            (path / table).mkdir(exist_ok=True)
            pq.write_table(table_of(table, list(here.itertuples(index=False, name=None))), path / table / f"part-{segment['index']:05d}.parquet")
            segment["rows"][table] = len(here)
    (path / MANIFEST).write_text(json.dumps(manifest))
    return path


def switches(trace: Trace) -> pd.DataFrame:
    rows = trace.sched()
    rows = rows[rows["kind"] != SchedKind.WAKING]
    out = rows["kind"].isin([SchedKind.OUT, SchedKind.SNAPSHOT])
    return rows.assign(syscall=rows["syscall"].mask(out, SYSCALL_UNKNOWN), address=0, other_tid=0, other_pid=0)


def samples(trace: Trace) -> pd.DataFrame:
    """Every thread's CPU time each 10 ms."""
    states = split.timeline(trace.sched(), trace.processes(), trace.end_ns)
    rows = []
    for (pid, tid), own in states.groupby(["pid", "tid"]):
        for ts in range(int(own["start_ns"].min()), int(own["end_ns"].max()) + 1, 10 * MS):
            spent = (own["end_ns"].clip(upper=ts) - own["start_ns"]).clip(lower=0).groupby(own["state"], observed=False).sum()
            rows.append((ts, pid, tid, int(spent["on_cpu"]), int(spent["runq_wait"])))
    return pd.DataFrame(sorted(rows), columns=["ts", "pid", "tid", "on_cpu_ns", "runq_wait_ns"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("whole") / "trace")


@pytest.fixture(scope="module", params=["perf", "cputime", None])
def path(request: pytest.FixtureRequest, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rewrite(whole, tmp_path_factory.mktemp("part") / "trace", request.param)


def source_of(path: Path) -> Any:
    return pytrace_ebpf.open(path).scheduling["source"]


def test_what_is_known_is_what_ebpf_says(path: Path, whole: Path) -> None:
    calls, truth = pytrace_ebpf.open(path).calls(), pytrace_ebpf.open(whole).calls()
    pd.testing.assert_frame_equal(calls[["call_id", "wall_ns", "status"]], truth[["call_id", "wall_ns", "status"]])
    if source_of(path) is None:
        assert calls[[*SPLIT, "self_on_cpu_ns", "waits", "first_cpu"]].isna().all(axis=None)
    elif source_of(path) == "perf":
        exact = ["on_cpu_ns", "self_on_cpu_ns", "first_cpu", "last_cpu", "migrations", "preemptions", "waits"]
        pd.testing.assert_frame_equal(calls[exact], truth[exact])
        slept = truth["gil_wait_ns"] + truth["blocked_ns"] > 0
        assert calls.loc[slept, WAITS].isna().all(axis=None)
        told = calls[~slept]
        assert (told["wall_ns"] == told[list(SPLIT)].sum(axis=1)).all()
        assert not told[["gil_wait_ns", "blocked_ns"]].any(axis=None)
    else:
        assert calls["on_cpu_ns"].notna().all()
        assert calls[["gil_wait_ns", "blocked_ns", "waits"]].isna().all(axis=None)
        outer = calls["depth"] == 0
        assert ((calls["on_cpu_ns"] - truth["on_cpu_ns"])[outer].abs() <= 20 * MS).all()


def test_sums_never_pass_partial_waits_off_as_whole(path: Path) -> None:
    trace = pytrace_ebpf.open(path)
    calls = trace.calls(columns=[*COLUMNS, "depth"])
    table = by_function(calls, trace.functions())
    for row in [overall(calls), *table.to_dict("records")]:
        assert source_of(path) != "perf" or pd.notna(row["on_cpu_ns"])
        if not any(pd.isna(row[name]) for name in SPLIT):
            assert sum(row[name] for name in SPLIT) + row["unknown_ns"] == row.get("total_ns", row.get("wall_ns"))
    assert table.set_index("qualname").loc["Worker.step", WAITS[1:]].isna().all()


def test_threads_and_cores(path: Path, whole: Path) -> None:
    def tables(directory: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
        trace = pytrace_ebpf.open(directory)
        states = split.timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())
        threads = by_thread(trace.thread_times(), trace.threads(), trace.start_ns, trace.end_ns)
        return threads.sort_values("tid", ignore_index=True), by_core(states, trace.threads())

    (threads, cores), (true_threads, true_cores) = tables(path), tables(whole)
    assert threads[WAITS[1:]].isna().all(axis=None)
    assert (threads["wall_ns"] == true_threads["wall_ns"]).all()
    if source_of(path) == "perf":
        assert threads["on_cpu_ns"].tolist() == true_threads["on_cpu_ns"].tolist()
        pd.testing.assert_frame_equal(cores, true_cores)
    elif source_of(path) == "cputime":
        assert ((threads["on_cpu_ns"] - true_threads["on_cpu_ns"]).abs() <= 20 * MS).all()
        assert (threads["unknown_ns"] < 20 * MS).all()
    else:
        assert (threads["unknown_ns"] == threads["wall_ns"]).all()


@pytest.mark.parametrize("options", [(), ("--by", "thread"), ("--by", "core"), ("--by", "module", "--sort", "total"), ("--compensate",)])
def test_the_report_says_what_is_missing_and_shows_two_states(path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    assert main.main(["report", str(path), *options]) == 0
    out = capsys.readouterr().out
    missing = "When threads ran and waited is not known" if source_of(path) is None else "Run queue, GIL wait and blocked are not distinguished"
    assert f"{missing}: the kernel did not permit more." in out
    out = out.replace(missing, "")
    assert "off CPU" in out and "run queue" not in out and "GIL" not in out
    assert main.main(["report", str(path), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scheduling"]["source"] == source_of(path)


def test_info_says_it_too(path: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["info", str(path)]) == 0
    assert "the kernel did not permit more" in capsys.readouterr().out
    assert main.main(["info", str(whole)]) == 0
    assert "not distinguished" not in capsys.readouterr().out


def test_every_export_is_written(path: Path, tmp_path: Path) -> None:
    for name in FORMATS:
        assert main.main(["export", str(path), "--to", name, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size
    assert "Gil" not in (tmp_path / "callgrind").read_text()


def test_folded_refuses_a_value_that_is_not_known_of_all_calls(path: Path, tmp_path: Path) -> None:
    with (tmp_path / "folded").open("wb") as out:
        for value in ("gil_wait", "blocked"):
            with pytest.raises(UsageError, match=value):
                folded.write(pytrace_ebpf.open(path), value, out)
