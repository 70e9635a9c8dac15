"""What a daemon has sampled, hour by hour: written, kept within bounds, and read as one trace."""

import os
import shutil
import socket
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.live.profile import profile
from pytrace_ebpf.analyze.live.profile_waits import ProfileWaits
from pytrace_ebpf.analyze.live.samples import LiveSamples
from pytrace_ebpf.analyze.samples.by_wait import by_wait
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.daemon import retention as kept_module
from pytrace_ebpf.daemon import store as store_module
from pytrace_ebpf.daemon.lock import Lock, Running
from pytrace_ebpf.daemon.retention import Retention, name_of
from pytrace_ebpf.daemon.service import notify
from pytrace_ebpf.daemon.store import Store
from pytrace_ebpf.errors import HostError, TraceError
from pytrace_ebpf.record.live.sink import Closed
from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.trace.joined import HOUR
from pytrace_ebpf.trace.schema import TABLES

PERIOD = 10_000_000
SECOND = 10**9


def rows(name: str, content: list[tuple[Any, ...]]) -> pa.Table:
    spec = TABLES[name]
    whole = [(*row, *(column.absent for column in spec.columns[len(row) :])) for row in content]
    columns = zip(*whole, strict=True) if whole else [()] * len(spec.columns)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, spec.arrow, strict=True)], schema=spec.arrow)


class Life:
    """One daemon's store, and the functions of its session; each window has one more sample of each stack than the one before."""

    def __init__(self, place: Path, first: str, max_bytes: int = 1 << 30, max_age_s: float = 1e6) -> None:
        self.hours = Retention(place, HOUR, max_bytes, max_age_s)
        self.store = Store(self.hours, ["pytrace-ebpf", "daemon"], {}, 10.0)
        self.first, self.count, self.now = first, 0, time.monotonic_ns()
        self.live, self.waits = LiveSamples(self.now, "x86_64", {"period_ns": PERIOD}), ProfileWaits("x86_64")

    def window(self, pids: tuple[int, ...] = (41, 42)) -> None:
        """Write one."""
        start, end = self.now, self.now + 10 * SECOND
        tables = {
            "samples": rows("samples", [(start + at, pid, pid, 0, 1 + at % 2, -1, 0, 0) for pid in pids for at in range(4)]),
            "stacks": rows("stacks", [(1, -1, 0, 5), (2, 1, 1 + self.count, 9)]),
            "functions": rows("functions", [(0, f"/{self.first}.py", self.first, self.first, 1, self.first)] * (not self.count) + [
                (1 + self.count, "/f.py", "f", f"f{self.count}", 3, "f")]),
        }  # fmt: skip
        if not self.count:
            tables["resources"] = rows("resources", [(51, "tcp", "10.0.0.5:5432", "10.0.0.7:40000", False, 41, 4, 0, 0, 0)])
            tables["processes"] = rows("processes", [(pid, 1, "/p", f"p {pid}", "3.11.2", "sample", 0, 0, start, None) for pid in pids])
        facts = {"sampling": {"period_ns": PERIOD, "off_core": 1, "states": 2}, "sources": [], "target": {"pid": 41}, "targets": []}
        closed = Closed(start, end, tables, facts)
        weighed = self.live.take(tables, end)
        blocked = weighed.assign(off_ns=SECOND, on_cpu_ns=0, blocked_ns=SECOND, blocked_square=4.0, syscall=45, resource_id=51)
        self.store.write(closed, profile(weighed, tables["stacks"], start, end), self.waits.take(tables, blocked, start, end))
        self.count, self.now = self.count + 1, end

    def close(self) -> None:
        self.store.close()
        self.hours.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed, by every clock."""
    ahead, real = [0.0], time.time
    for module in (store_module, kept_module):
        monkeypatch.setattr(
            module, "time", type("Time", (), {name: staticmethod(getattr(time, name)) for name in ("gmtime", "strftime")} | {"CLOCK_BOOTTIME": 7})
        )
        monkeypatch.setattr(module.time, "time", staticmethod(lambda: real() + ahead[0]), raising=False)
        monkeypatch.setattr(module.time, "clock_gettime", staticmethod(lambda _: real() + ahead[0]), raising=False)
    return ahead


def test_hours_of_several_lives_are_one_trace_with_one_number_for_a_function(tmp_path: Path, clock: list[float]) -> None:
    first = Life(tmp_path / "d", "main")
    first.window()
    clock[0] += 3600
    first.window()
    first.window()
    first.close()
    second = Life(tmp_path / "d", "other")
    second.now = first.now
    second.window()
    second.close()
    assert len(list((tmp_path / "d").iterdir())) == 3
    trace = pytrace_ebpf.open(tmp_path / "d")
    names = trace.functions().set_index("func_id")["qualname"]
    assert sorted(names) == ["f0", "f1", "f2", "main", "other"]
    table = trace.profile()
    assert table["samples"].sum() == 4 * 2 * 4 and table["on_cpu_ns"].sum() == 32 * PERIOD
    by_name = table.groupby(table["func_id"].map(names))["samples"].sum().to_dict()
    assert by_name == {"main": 12, "other": 4, "f0": 8, "f1": 4, "f2": 4}
    assert set(trace.processes()["command"]) == {"p 41", "p 42"}
    tree = trace.tree(pid=42)
    assert tree.loc[tree["depth"] == -1, "total_ns"].tolist() == [16 * PERIOD]
    assert abs(trace.end_ns / 1e9 - (time.time() + 40)) < 60, "moments are those of the real clock"
    part = trace.window(trace.start_ns, trace.start_ns + SECOND)
    assert part.profile()["samples"].sum() == 8


@pytest.mark.parametrize(("words", "code"), [
    (("report", "--by", "function"), 0), (("report", "--by", "line"), 0), (("report", "--by", "task"), 0), (("report", "--by", "wait"), 0),
    (("report", "--by", "gil"), 2), (("report", "--by", "thread"), 2),
    (("report", "--pid", "42"), 0), (("export", "--to", "folded", "-o", "-"), 0), (("export", "--to", "perfetto", "-o", "-"), 2), (("info",), 0),
])  # fmt: skip
def test_what_sums_cannot_say_is_refused(tmp_path: Path, words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    life = Life(tmp_path / "d", "main")
    life.window()
    life.close()
    assert main([words[0], str(tmp_path / "d"), *words[1:]]) == code
    assert ("a daemon's sums" in capsys.readouterr().err) is (code == 2)


def test_the_advice_names_the_processes_that_it_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    life = Life(tmp_path / "d", "main")
    for _ in range(8):
        life.window()
    for _ in range(8):
        life.window((42,))
    life.close()
    assert main(["report", str(tmp_path / "d")]) == 0
    assert "pytrace-ebpf attach 42,41 --include " in capsys.readouterr().out


def test_what_was_waited_for_is_added_up_over_hours_and_lives(tmp_path: Path, clock: list[float]) -> None:
    for first in ("first", "second"):
        life = Life(tmp_path, first)
        for _ in range(2):
            life.window()
            clock[0] += 3600
        life.close()
    trace = pytrace_ebpf.open(tmp_path)
    names = trace.functions().set_index("func_id")["qualname"]
    table = by_wait(trace)
    assert {(row.kind, row.syscall, row.resource) for row in table.itertuples()} == {("net", "recvfrom", "postgres 10.0.0.5:5432")}
    of = table.set_index(table["func_id"].map(names))[["total_ns", "error_ns", "samples"]]
    assert of.loc["first"].tolist() == of.loc["second"].tolist() == [8 * SECOND, round(32**0.5), 8]
    assert of.loc["f0"].tolist() == [8 * SECOND, round(32**0.5), 8] and of.loc["f1"].tolist() == [8 * SECOND, round(32**0.5), 8]
    assert (trace.profile_waits()["end_ns"] - trace.profile_waits()["start_ns"] == 10 * SECOND).all()
    assert main(["report", str(tmp_path), "--by", "wait"]) == 0


def test_of_many_waits_those_with_least_time_name_no_resource() -> None:
    tables = {"resources": rows("resources", [(at, "file", f"/{at}", "", False, 41, 4, 0, 0, 0) for at in range(1, 40)])}
    one = pd.DataFrame({"pid": 41, "stack_id": -1, "off_ns": 1, "syscall": 0, "resource_id": range(1, 40), "samples": 1})
    times = dict.fromkeys(("gil_wait_ns", "runq_wait_ns", "unknown_ns", "gil_wait_square", "runq_wait_square", "unknown_square", "blocked_square"), 0)
    samples = one.assign(**times, blocked_ns=range(1000, 1039))
    table = ProfileWaits("x86_64").take(tables, samples, 0, 10, most=10).to_pandas()
    assert sorted(table["resource"].dropna()) == [f"/{at}" for at in range(35, 40)] and table["total_ns"].sum() == samples["blocked_ns"].sum()
    assert table.loc[table["resource"].isna(), "samples"].tolist() == [34]


def test_one_hour_is_a_trace_by_itself(tmp_path: Path) -> None:
    life = Life(tmp_path / "d", "main")
    for _ in range(70):
        life.window()
    life.close()
    (hour,) = (tmp_path / "d").iterdir()
    trace = pytrace_ebpf.open(hour)
    assert trace.profile()["samples"].sum() == 70 * 8
    assert len(trace.functions()) == 71
    assert len(list((hour / "profile").iterdir())) < 10, "small parts become few"


def test_the_oldest_hours_go_when_there_are_too_many_bytes(tmp_path: Path, clock: list[float]) -> None:
    before = Life(tmp_path / "before", "main")
    before.window()
    before.close()
    (hour,) = (tmp_path / "before").iterdir()
    size = sum(path.stat().st_blocks * 512 for path in hour.rglob("*") if path.is_file())
    life = Life(tmp_path / "d", "main", max_bytes=3 * size)
    life.window()
    for _ in range(6):
        clock[0] += 3600
        life.window()
    names = life.hours.names()
    assert life.store.trace is not None and names[-1] == life.store.trace.name
    assert 1 < len(names) <= 4 and life.hours.removed == 7 - len(names)
    assert life.hours.bytes <= life.hours._max_bytes
    life.close()


def test_a_clock_that_is_stepped_makes_no_hour_too_old(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [0.0]
    monkeypatch.setattr(kept_module.time, "clock_gettime", staticmethod(lambda _: passed[0]), raising=False)
    life = Life(tmp_path / "d", "main", max_age_s=2 * 3600)
    life.window()
    clock[0] += 86400 * 365
    life.window()
    assert len(life.hours.names()) == 2 and life.hours.removed == 0
    clock[0] -= 2 * 86400 * 365
    life.window()
    assert len(life.hours.names()) == 3 and life.hours.removed == 0
    clock[0] += 86400 * 365 + 4 * 3600
    life.window()
    assert life.hours.removed == 1, "the hour of a year ago; the first one is not as old as the stepped clock says"
    passed[0] += 4 * 3600
    life.window()
    assert life.hours.removed == 2
    assert life.hours._clock.ahead_s == pytest.approx(0, abs=60)
    life.close()


def test_hours_that_are_too_old_go(tmp_path: Path, clock: list[float]) -> None:
    life = Life(tmp_path / "d", "main", max_age_s=2 * 3600)
    for _ in range(5):
        life.window()
        clock[0] += 3600
    assert len(life.hours.names()) == 3
    life.close()


def test_what_is_not_an_hour_of_ours_is_never_removed_and_no_link_is_followed(tmp_path: Path, clock: list[float]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("x")
    place = tmp_path / "d"
    place.mkdir(mode=0o700)
    (place / "20200101-00").symlink_to(other)
    (place / "20200101-00-2").write_text("a file")
    (place / "notes").mkdir()
    (place / "20200101-01").mkdir()
    (place / "20200101-01" / "link").symlink_to(other)
    (place / "20200101-01" / "deep").mkdir()
    life = Life(place, "main", max_age_s=3600)
    life.window()
    life.close()
    assert (other / "precious").exists()
    assert {path.name for path in place.iterdir()} == {"20200101-00", "20200101-00-2", "notes", name_of(time.time() + clock[0])}


def test_a_link_an_open_directory_and_somebody_elses_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(HostError, match="cannot write to"):
        Retention(tmp_path / "link", HOUR, 1, 1)
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(HostError, match="others may write to it"):
        Retention(tmp_path / "real", HOUR, 1, 1)
    if os.geteuid() == 0:
        (tmp_path / "real").chmod(0o700)
        os.chown(tmp_path / "real", 12345, 12345)
        with pytest.raises(HostError, match="belongs to somebody else"):
            Retention(tmp_path / "real", HOUR, 1, 1)


def test_the_last_twentieth_of_a_disk_stays_free_and_what_is_not_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path / "d", "main")
    life.window()
    disk = namedtuple("Disk", "f_bavail f_frsize f_blocks")
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk(50, 4096, 1000))
    life.window()
    life.window()
    assert life.store.not_written == 2 and life.store.why_not == "less than a twentieth of its disk would stay free"
    monkeypatch.undo()
    life.window()
    assert life.store.windows == 2 and life.store.why_not is None
    life.close()
    found = pytrace_ebpf.open(tmp_path / "d")
    assert found.profile()["samples"].sum() == 16
    assert {"f0", "f3"} <= set(found.functions()["qualname"]), "functions that came meanwhile are known"


def test_windows_that_fail_while_they_are_written_are_counted_and_the_next_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path / "d", "main")
    life.window()
    life.store._close_hour()
    real = Output.create

    def full(self: Output, folder: str, name: str) -> Any:
        if folder == "profile":
            raise OSError(28, "No space left on device")
        return real(self, folder, name)

    monkeypatch.setattr(Output, "create", full)
    for _ in range(4):
        life.window()
    life.store._close_hour()  # what is under way fails too
    monkeypatch.undo()
    life.window()
    life.close()
    assert (life.store.windows, life.store.not_written) == (2, 4)
    assert pytrace_ebpf.open(tmp_path / "d").profile()["samples"].sum() == 8 * life.store.windows


def test_a_directory_that_is_removed_is_said_and_harms_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path / "d", "main")
    life.window()
    life.store.close()
    shutil.rmtree(tmp_path / "d")
    life.window()
    assert life.store.not_written == 1 and life.store.why_not == "its directory is gone"
    life.close()


def test_a_directory_without_hours_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        pytrace_ebpf.open(tmp_path)
    (tmp_path / "20261123-15").mkdir()
    with pytest.raises(TraceError):
        pytrace_ebpf.open(tmp_path)


def test_one_daemon_at_a_time_and_it_can_be_asked(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no daemon runs"):
        Running(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").write_text('{"pid": 2}')  # of one that was killed
    lock = Lock(tmp_path / "run")
    with pytest.raises(HostError, match=f"runs already, as process {os.getpid()}"):
        Lock(tmp_path / "run")
    running = Running(tmp_path / "run")
    with pytest.raises(HostError, match="only just started"):
        running.status()
    lock.publish({"pid": 1, "bytes": int(np.int64(4))})
    said = running.status()
    assert (running.pid, said["pid"], said["bytes"]) == (os.getpid(), 1, 4) and said["silent_s"] >= 0
    running.close()
    lock.close()
    with pytest.raises(HostError, match="no daemon runs"):
        Running(tmp_path / "run")
    Lock(tmp_path / "run").close()


def test_a_lock_is_taken_in_no_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(HostError, match="others may write to it"):
        Lock(tmp_path / "run")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "run" / "daemon.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError, match="cannot have its run directory"):
        Lock(tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()


def test_systemd_is_told_at_a_path_or_an_abstract_name_and_nobody_where_it_does_not_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, address in ((str(tmp_path / "notify"), str(tmp_path / "notify")), (f"@{tmp_path}", f"\0{tmp_path}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.bind(address)
            monkeypatch.setenv("NOTIFY_SOCKET", name)
            notify("READY=1")
            assert end.recv(64) == b"READY=1"
    notify("WATCHDOG=1")  # nobody is there any more
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


def test_samples_of_no_task_are_taken() -> None:
    nobody = pa.DictionaryArray.from_arrays(pa.nulls(1, pa.int32()), pa.array([], pa.string()))
    table = rows("samples", [(SECOND, 7, 7, 0, 1, -1, 0, 0)])
    table = table.set_column(table.column_names.index("task"), "task", nobody)
    assert LiveSamples(0, "x86_64", {"period_ns": PERIOD}).take({"samples": table}, 2 * SECOND)["total_ns"].tolist() == [PERIOD]
