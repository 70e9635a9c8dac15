"""Traces that were made to attack their reader: links, pipes, absurd values, planted results, escape sequences."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.export import FORMATS
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.derive.checkpoints import Checkpoint
from pytrace_ebpf.trace.derived import _CHECK_BYTES, _check
from pytrace_ebpf.trace.schema import MANIFEST, WAITS, CallKind
from tests.conftest import PATIENCE_S
from tests.hostile import USER, as_user, needs_root
from tests.unit.synthetic import reseal, sample

COMMANDS = (["info"], ["report"], ["report", "--by", "wait"], ["report", "--by", "core"], ["export", "--to", "perfetto", "-o", "-"])


@pytest.fixture
def path(public_path: Path) -> Path:
    return sample(public_path / "trace")


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The one sentence of a command that must end with exit code 5."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    said = capsys.readouterr().err
    assert code == 5, said
    assert said.startswith("pytrace-ebpf: ") and said.count("\n") == 1
    return said


def change(path: Path, *keys: Any, value: Any) -> None:
    """Replace one value, however deep, of a trace's manifest."""
    manifest = json.loads((path / MANIFEST).read_text())
    place = manifest
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (path / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("state",), "finished"), (("start_ns",), -1), (("start_ns",), 1 << 80), (("start_ns",), True), (("end_ns",), 1.5), (("clock",), [None]),
        (("clock", 0), {"realtime_ns": 1}), (("clock", 0, "realtime_ns"), 10**30), (("host", "machine"), 1), (("host", "cpus"), "two"),
        (("host",), []), (("target",), {}), (("target", "pid"), "4000"), (("target", "command"), ["python3"]), (("argv",), [1]),
        (("argv",), "python3"), (("options", "layers"), "blas"), (("sources", 0), None), (("sources", 0, "why"), None), (("sources",), [{}]),
        (("lost", "call_ring"), "many"), (("lost",), {"call_ring": -1}), (("cost", "ns_per_call"), "cheap"), (("cost", "waited_ns"), None),
        (("cost", "ns_per_call"), float("nan")), (("native",), []), (("native",), {"missing": [1]}), (("scheduling",), "bpf"),
        (("scheduling",), {"source": "perf", "why": None}), (("segments", 0), None), (("segments", 1, "index"), 0), (("segments", 1, "index"), -2),
        (("segments", 0, "rows", "events"), "all"), (("segments", 0, "rows"), []), (("segments", 0, "end_ns"), None), (("ended",), 1),
    ],
)  # fmt: skip
def test_a_manifest_that_is_damaged_anywhere_is_refused(path: Path, capsys: pytest.CaptureFixture[str], keys: tuple[Any, ...], value: Any) -> None:
    change(path, *keys, value=value)
    for command in COMMANDS[:2]:
        assert MANIFEST in refused(capsys, command[0], path, *command[1:])


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"1" * 5000, b"", b'{"format": "pytrace-ebpf", "format_version": true}'])
def test_what_is_no_manifest_at_all_is_refused(path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (path / MANIFEST).write_bytes(content)
    refused(capsys, "info", path)


def link(of: Path) -> None:
    of.rename(of.with_suffix(".real"))
    of.symlink_to(of.with_suffix(".real"))


def pipe(of: Path) -> None:
    of.unlink()
    os.mkfifo(of)


def folder(of: Path) -> None:
    of.unlink()
    of.mkdir()


def device(of: Path) -> None:
    of.unlink()
    of.symlink_to("/dev/zero")


@pytest.mark.parametrize("damage", [link, pipe, folder, device, Path.unlink, lambda of: os.truncate(of, of.stat().st_size // 2)])
@pytest.mark.parametrize("file", [MANIFEST, "events/part-00001.parquet", "sched/part-00000.parquet", "functions/part-00000.parquet"])
def test_only_regular_whole_files_are_read(path: Path, capsys: pytest.CaptureFixture[str], file: str, damage: Callable[[Path], None]) -> None:
    damage(path / file)
    refused(capsys, "report", path)


def test_a_folder_of_parts_that_is_a_link_is_not_followed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link(path / "events")
    refused(capsys, "report", path)


def column(name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Every value of a column replaced; the type stays."""

    def replaced(table: pa.Table) -> pa.Table:
        kind = table[name].type
        if pa.types.is_dictionary(kind):
            values = pa.array([value] * len(table), kind.value_type).dictionary_encode()
        else:
            values = pa.array([value] * len(table), kind)
        return table.set_column(table.column_names.index(name), name, values)

    return replaced


def texts(name: str) -> Callable[[pa.Table], pa.Table]:
    """A column of another type."""
    return lambda table: table.set_column(table.column_names.index(name), name, pa.array(["soon"] * len(table)))


def not_utf8(name: str) -> Callable[[pa.Table], pa.Table]:
    def replaced(table: pa.Table) -> pa.Table:
        raw = pa.array([b"\xff\x1b"] * len(table), pa.binary())
        return table.set_column(table.column_names.index(name), name, raw.view(pa.string()))

    return replaced


DAMAGES = {
    "kind that is none": ("events", column("kind", len(CallKind))),
    "negative kind": ("sched", column("kind", -1)),
    "negative function": ("events", column("func_id", -2)),
    "negative time": ("events", column("ts", -(1 << 62))),
    "time near the end of int64": ("sched", column("ts", (1 << 63) - 1)),
    "null time": ("events", column("ts", None)),
    "null kind": ("events", column("kind", None)),
    "negative thread": ("events", column("tid", -5)),
    "layer that is none": ("functions", column("function_layer", "ruby")),
    "null name": ("functions", column("name", None)),
    "name that is no text": ("functions", not_utf8("qualname")),
    "core that is none": ("sched", column("cpu", -7)),
    "column that is missing": ("events", lambda table: table.drop_columns(["ts"])),
    "column of texts": ("events", texts("ts")),
    "rows that are missing": ("events", lambda table: table.slice(0, 3)),
    "rows that are too many": ("functions", lambda table: pa.concat_tables([table, table])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_values_that_no_recorder_writes_are_refused(path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    table, change_it = DAMAGES[damage]
    part = path / table / "part-00000.parquet"
    pq.write_table(change_it(pq.read_table(part)), part)
    assert table in refused(capsys, "report", path)


def test_a_part_that_would_fill_the_memory_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = 20_000_000  # 160 MB of one column, a few KB as a file
    part = path / "usage" / "part-00000.parquet"
    with pq.ParquetWriter(part, pa.schema([("ts", pa.int64())])) as writer:
        ones = pa.table({"ts": pa.array([1]).take(pa.array([0] * 1_000_000))})
        for _ in range(rows // len(ones)):
            writer.write_table(ones)
    change(path, "segments", 0, "rows", "usage", value=rows)
    assert "usage" in refused(capsys, "info", path)


@needs_root
def test_root_derives_nothing_in_a_users_directory(path: Path, public_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = public_path / "private"
    private.mkdir(mode=0o700)
    for each in (path, *path.rglob("*")):
        os.chown(each, USER, USER)
    as_user("import os, sys; os.symlink(sys.argv[1], sys.argv[2])", private, path / "calls")
    before = sorted(path.rglob("*"))
    assert main(["report", str(path)]) == 0
    assert sorted(path.rglob("*")) == before and list(private.iterdir()) == []
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@needs_root
def test_root_does_not_use_what_a_user_derived(path: Path) -> None:
    honest = pytrace_ebpf.open(path).calls()
    part = path / "calls" / "part-00000.parquet"
    calls = pq.read_table(part)
    pq.write_table(column("wall_ns", 1)(calls), part)
    reseal(part.parent)
    assert (pytrace_ebpf.open(path).calls()["wall_ns"] == 1).any()  # in our own directory what is kept is read
    for each in (path, *path.rglob("*")):
        os.chown(each, USER, USER)
    assert pytrace_ebpf.open(path).calls().equals(honest)


def test_what_lies_in_the_place_of_a_derived_table_is_not_written_through(path: Path, public_path: Path) -> None:
    elsewhere = public_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "precious").write_text("data")
    (path / "calls").symlink_to(elsewhere)
    with pytest.raises(pytrace_ebpf.errors.TraceError, match="calls cannot be written"):
        pytrace_ebpf.open(path).calls()
    assert [each.name for each in elsewhere.iterdir()] == ["precious"]
    assert not list(path.glob(".calls-*"))


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x00\r\n"


def test_no_escape_sequence_of_a_target_reaches_a_terminal(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, columns in {"functions": ("file", "name", "qualname", "module"), "threads": ("name",), "processes": ("command", "executable")}.items():
        for part in (path / name).glob("*.parquet"):
            table = pq.read_table(part)
            for each in columns:
                texts = pc.binary_join_element_wise(table[each].cast(pa.string()), ESCAPES.replace("\x00", ""), "")
                table = table.set_column(table.column_names.index(each), each, texts)
            pq.write_table(table, part)
    for keys in (("target", "command"), ("target", "executable"), ("host", "hostname"), ("sources", 0, "why"), ("argv", 0)):
        change(path, *keys, value=ESCAPES)
    change(path, "ended", value=ESCAPES)
    change(path, "scheduling", value={"source": "bpf", "why": ESCAPES})
    whole = [["report", "--by", by] for by in ("function", "module", "thread", "core", "wait", "gil", "task", "operator", "blas", "error")]
    for words in [*whole, ["report", "--json"], ["info"], ["info", "--json"], ["export", "--to", "folded", "-o", "-"]]:
        assert main([words[0], str(path), *words[1:]]) in (0, 5)
        said = "".join(capfd.readouterr())
        assert said and all(c.isprintable() or c == "\n" for c in said), words
    named = path.rename(path.with_name(f"a\x1b[31m{path.name}"))
    shutil.rmtree(named / "functions")
    assert "\x1b" not in refused(capfd, "report", named)


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_that_fails_leaves_what_was_there(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str) -> None:
    out = tmp_path / "out"
    out.write_text("good")
    (path / "events" / "part-00002.parquet").unlink()
    refused(capsys, "export", path, "--to", to, "-o", out)
    assert out.read_text() == "good" and [each.name for each in tmp_path.iterdir()] == ["out"]


def test_an_export_replaces_a_link_and_writes_to_a_device(path: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").symlink_to("victim")
    assert main(["export", str(path), "--to", "folded", "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert stat.S_IMODE((tmp_path / "out").lstat().st_mode) == 0o600
    subprocess.run(
        [sys.executable, "-m", "pytrace_ebpf", "export", str(path), "--to", "folded", "-o", "/dev/null"],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@needs_root
def test_under_sudo_an_export_is_the_users_and_made_with_the_users_rights(path: Path, public_path: Path) -> None:
    home, private = public_path / "home", public_path / "private"
    home.mkdir()
    os.chown(home, USER, USER)
    private.mkdir(mode=0o700)
    (home / "own").symlink_to(private)
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    codes = {}
    for out in (home / "out", home / "own" / "out", private / "out"):
        words = [sys.executable, "-m", "pytrace_ebpf", "export", str(path), "--to", "folded", "-o", str(out)]
        codes[out.parent.name] = subprocess.run(
            words, env=os.environ | {"SUDO_UID": str(nobody.pw_uid)}, capture_output=True, timeout=PATIENCE_S
        ).returncode
    assert codes == {"home": 0, "own": 2, "private": 2} and list(private.iterdir()) == []
    assert (home / "out").stat().st_uid == nobody.pw_uid


EXPERIMENT = {
    "format": "pytrace-ebpf experiment", "format_version": 1, "command": ["true"],
    "settings": [{"setting": "one", "cpus": None, "threads": None, "cores": 1}],
    "runs": [{"setting": "one", "repeat": 1, "trace": "traces/one/1", "log": "traces/one/1.log", "wall_ns": 5, "calls": 1, "lost": 0}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("format_version",), "1"), (("command",), "true"), (("settings",), []), (("settings", 0, "cores"), None), (("settings", 0, "cpus"), "0"),
        (("runs",), [[]]), (("runs", 0, "setting"), "two"), (("runs", 0, "repeat"), -1), (("runs", 0, "wall_ns"), 1 << 70), (("runs", 0, "lost"), None), (("runs",), None),
    ],
)  # fmt: skip
def test_an_experiment_that_is_damaged_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: tuple[Any, ...], value: Any) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps(EXPERIMENT))
    refused(capsys, "experiment", "--report", tmp_path)  # it has no parts
    experiment = json.loads(json.dumps(EXPERIMENT))
    place = experiment
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (tmp_path / "experiment.json").write_text(json.dumps(experiment))
    refused(capsys, "experiment", "--report", tmp_path)
    (tmp_path / "experiment.json").unlink()
    os.mkfifo(tmp_path / "experiment.json")
    refused(capsys, "experiment", "--report", tmp_path)


@needs_root
def test_root_does_not_use_what_a_user_put_into_roots_own_trace(path: Path) -> None:
    honest = pytrace_ebpf.open(path).calls()
    part = path / "calls" / "part-00000.parquet"
    pq.write_table(column("wall_ns", 1)(pq.read_table(part)), part)
    os.chown(path / "calls", USER, USER)
    assert pytrace_ebpf.open(path).calls().equals(honest)


@needs_root
@pytest.mark.parametrize("folder", ["settled", "waits"])
def test_root_goes_on_from_nothing_that_a_user_kept(path: Path, folder: str) -> None:
    change(path, "state", value="recording")
    change(path, "end_ns", value=None)
    honest = pytrace_ebpf.open(path).waits()
    assert pytrace_ebpf.open(path).settled(WAITS) is not None
    os.chown(path / folder, USER, USER)
    trace = pytrace_ebpf.open(path)
    assert trace.settled(WAITS) is None and trace.waits().equals(honest)


@needs_root
def test_root_does_not_use_the_sums_that_a_user_kept(path: Path, public_path: Path) -> None:
    honest = pytrace_ebpf.open(path).tree()
    kept = sorted((path / "sums").iterdir())
    state = Checkpoint.unpacked(kept[-1].read_bytes()[:-_CHECK_BYTES])
    assert state is not None
    nodes = state.nodes.copy()
    nodes["calls"] = 1_000_000
    forged = replace(state, nodes=nodes).packed()
    kept[-1].write_bytes(forged + _check(forged))
    shutil.rmtree(path / "tree")
    assert pytrace_ebpf.open(path).tree()["calls"].sum() > 1_000_000  # in our own directory what is kept is read
    shutil.rmtree(path / "tree")
    os.chown(path / "sums", USER, USER)
    assert pytrace_ebpf.open(path).tree().equals(honest)
    shutil.rmtree(path / "tree")
    shutil.rmtree(path / "sums")
    elsewhere = public_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (path / "sums").symlink_to(elsewhere)
    assert pytrace_ebpf.open(path).tree().equals(honest) and not list(elsewhere.iterdir())
