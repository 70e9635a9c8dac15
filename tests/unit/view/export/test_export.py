"""Exports hold what the trace holds: decoded by their own readers, calls and states come back exactly."""

import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import with_self
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.derive.calls.preorder import begin_end
from pytrace_ebpf.derive.scheduling import trace_timeline
from pytrace_ebpf.derive.scheduling.split import timeline
from pytrace_ebpf.derive.scheduling.trace_timeline import timelines
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.rebuild import written
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TREE
from pytrace_ebpf.view.export import call_paths as export_paths
from pytrace_ebpf.view.export import callgrind, chrome, folded, parts, perfetto, protobuf, small, speedscope
from pytrace_ebpf.view.export.call_paths import NO_CONTEXT, merged, paths, paths_in
from tests.unit.callrows import Call, frame, random_calls
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, convoy, sample, write_trace
from tests.unit.trees import grow

NAMES = {row[0]: row[3] for row in SAMPLE_FUNCTIONS}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return pytrace_ebpf.open(sample(tmp_path_factory.mktemp("sample")))


def states(trace: Trace) -> pd.DataFrame:
    return timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())


def spans(trace: Trace) -> list[tuple[Any, ...]]:
    """(tid, name, start, end) of every call."""
    calls = trace.calls()
    return sorted(zip(calls["tid"], calls["func_id"].map(NAMES), calls["start_ns"], calls["end_ns"], strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_begins_and_ends_are_nested_also_at_one_instant(seed: int) -> None:
    calls = frame({tid: random_calls(50 * seed + tid) for tid in (1, 2)}, stride=2).sample(frac=1, random_state=seed)
    row, is_end = begin_end(calls)
    stack: list[int] = []
    previous: tuple[int, int] = (0, 0)
    for call, end in zip(calls.iloc[row].to_dict("records"), is_end, strict=True):
        when = (call["tid"], call["end_ns" if end else "start_ns"])
        assert when >= previous if when[0] == previous[0] else not stack
        previous = when
        if end:
            assert stack.pop() == call["call_id"]
        else:
            assert (stack[-1] if stack else -1) == call["parent_id"]
            stack.append(call["call_id"])
    assert not stack


def test_a_padded_varint_reads_as_the_number() -> None:
    values = np.array([0, 1, 127, 128, 1 << 20, (1 << 28) - 1])
    matrix = protobuf.messages([protobuf.Slot(1, 4, values)], len(values))
    read = sum((matrix[:, 1 + i].astype(np.int64) & 0x7F) << (7 * i) for i in range(4))
    assert (matrix[:, 0] == 8).all() and read.tolist() == values.tolist()
    assert (matrix[:, 1:4] >= 0x80).all() and (matrix[:, 4] < 0x80).all()


class Perfetto:
    """What ui.perfetto.dev would make of a trace, by perfetto's own protos and its documented rules."""

    def __init__(self, data: bytes) -> None:
        protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs perfetto's protos: pip install perfetto")
        self.packets = protos.Trace.FromString(data).packet
        self.tracks = {p.track_descriptor.uuid: p.track_descriptor for p in self.packets if p.HasField("track_descriptor")}
        self.clocks = [p.clock_snapshot for p in self.packets if p.HasField("clock_snapshot")]
        self.tasks = [(p.timestamp, p.generic_kernel_task_state_event) for p in self.packets if p.HasField("generic_kernel_task_state_event")]
        self.slices: dict[int, list[tuple[str, int, int]]] = defaultdict(list)
        self.arrows: dict[int, list[tuple[Any, str, int]]] = defaultdict(list)
        self.behind: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.places: dict[str, tuple[str, int]] = {}
        self.counters: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._play()

    def _play(self) -> None:
        names: dict[int, str] = {}
        annotations: dict[int, str] = {}
        sources: dict[int, Any] = {}
        open_: dict[int, list[tuple[str, int]]] = defaultdict(list)
        assert any(p.sequence_flags & 1 for p in self.packets)
        for packet in self.packets:  # names are read in the order of the file
            names |= {n.iid: n.name for n in packet.interned_data.event_names}
            annotations |= {n.iid: n.name for n in packet.interned_data.debug_annotation_names}
            sources |= {s.iid: s for s in packet.interned_data.source_locations}
        events = [p for p in self.packets if p.HasField("track_event")]
        for packet in sorted(events, key=lambda p: p.timestamp):  # events in that of time; sorted() is stable, as perfetto is
            event = packet.track_event
            assert packet.trusted_packet_sequence_id == 1 and packet.sequence_flags & 2 and event.track_uuid in self.tracks
            if event.type == event.TYPE_SLICE_BEGIN:
                open_[event.track_uuid].append((names[event.name_iid], packet.timestamp))
                for each in event.debug_annotations:
                    self.behind[names[event.name_iid]].add((annotations[each.name_iid], each.int_value or each.pointer_value))
                if event.source_location_iid:
                    source = sources[event.source_location_iid]
                    self.places[names[event.name_iid]] = (source.file_name, source.line_number)
            elif event.type == event.TYPE_INSTANT:
                ends = [(self.tracks[event.track_uuid], names[event.name_iid], packet.timestamp)]
                for flow in event.flow_ids:
                    self.arrows[flow] = ends + self.arrows[flow]
                for flow in event.terminating_flow_ids:
                    self.arrows[flow] += ends
            elif event.type == event.TYPE_COUNTER:
                assert self.tracks[event.track_uuid].counter.unit == 3  # UNIT_SIZE_BYTES
                self.counters[self.tracks[event.track_uuid].name].append((packet.timestamp, event.counter_value))
            else:
                name, start = open_[event.track_uuid].pop()
                self.slices[event.track_uuid].append((name, start, packet.timestamp))
        assert not any(open_.values())

    def of_thread(self, states: bool) -> dict[int, list[tuple[str, int, int]]]:
        """tid -> slices of its calls, or of its state track."""
        out = {}
        for uuid, found in self.slices.items():
            track = self.tracks[uuid]
            if (track.name == "state") == states:
                thread = self.tracks[track.parent_uuid].thread if states else track.thread
                assert states or self.tracks[track.parent_uuid].process.pid == thread.pid
                out[thread.tid] = sorted(found)
        return out


def in_perfetto(trace: Trace) -> Perfetto:
    out = io.BytesIO()
    perfetto.write(trace, timelines(trace), out)
    return Perfetto(out.getvalue())


def test_perfetto_holds_every_call_on_its_threads_track(trace: Trace) -> None:
    shown = in_perfetto(trace)
    found = [(tid, *s) for tid, slices in shown.of_thread(states=False).items() for s in slices]
    assert sorted(found) == spans(trace)
    assert shown.places["Worker.step"] == ("/app/work.py", 31)
    assert {t.thread.thread_name for t in shown.tracks.values() if t.thread.tid} == {"python3", "worker-1", "worker-2"}


def test_perfetto_shows_memory_over_time(tmp_path: Path) -> None:
    script = Script(7, 7, now=10).snapshot().enter(0).run(90).leave()
    faults = [(20, 7, 7, 2, 4096), (21, 7, 7, 0, 0), (60, 7, 7, 2, -8192)]
    allocations = [(10, 7, 7, 2, 700, 0, 0, 700, 700), (40, 7, 7, 0, 0, 1, 100, -100, 0)]
    usage = [(5, "process", 7, 7, 0.0, 0.0, None, 40960, 99999, 1, 0, 0)]
    path = write_trace(
        tmp_path,
        events=script.events,
        sched=script.sched,
        functions=SAMPLE_FUNCTIONS,
        faults=faults,
        allocations=allocations,
        native_blocks=[(22, 7, 7, 512, 100, 0, 0), (61, 7, 7, -512, 100, 22, 7)],
        usage=usage,
        cuts=(30,),
    )
    trace = pytrace_ebpf.open(path)
    shown = in_perfetto(trace)
    assert shown.counters == {
        "resident memory": [(20, 45056), (60, 36864)],
        "allocated by Python": [(10, 700), (40, 600)],
        "allocated by malloc": [(22, 512), (61, 0)],
    }
    assert in_perfetto(trace.window(30, 100)).counters == {
        "resident memory": [(60, 32768)],
        "allocated by Python": [(40, 0)],
        "allocated by malloc": [(61, 0)],
    }
    (process,) = [uuid for uuid, track in shown.tracks.items() if track.process.pid == 7]
    assert {track.parent_uuid for track in shown.tracks.values() if track.counter.unit == 3} == {process}


def test_perfetto_names_every_state_below_the_thread(trace: Trace) -> None:
    shown = in_perfetto(trace).of_thread(states=True)
    for (_, tid), rows in states(trace).groupby(["pid", "tid"]):
        assert [(s, e) for _, s, e in sorted(shown[tid], key=lambda s: s[1])] == list(zip(rows["start_ns"], rows["end_ns"], strict=True))
    labels = {name for slices in shown.values() for name, *_ in slices}
    assert labels == {"on core 0", "on core 1", "run queue", "run queue: preempted", "GIL wait", "lock", "sleep: clock_nanosleep"}


def test_perfetto_says_what_was_waited_for(tmp_path: Path) -> None:
    script = Script(7, 7).snapshot().enter(5).wait(5_000_000, syscall=45, resource=51).wait(1_000_000).leave()
    resources = [(51, "tcp", "10.0.0.5:5432", "10.0.0.7:40000", False, 7, 4, 0, 0, 0)]
    path = write_trace(tmp_path / "t", events=script.events, sched=script.sched, functions=SAMPLE_FUNCTIONS, resources=resources)
    shown = in_perfetto(pytrace_ebpf.open(path)).of_thread(states=True)[7]
    assert {name for name, *_ in shown} == {"on core 0", "run queue", "net: recvfrom postgres 10.0.0.5:5432", "sleep: clock_nanosleep"}


def test_perfetto_tells_who_held_the_gil_and_who_woke_whom(tmp_path: Path) -> None:
    shown = in_perfetto(pytrace_ebpf.open(convoy(tmp_path / "t")))
    label = f"GIL wait, held by {NAMES[0]}"
    assert (label, 10, 60) in shown.of_thread(states=True)[2]
    assert shown.behind[label] >= {("held by", 1), ("woken by", 1), ("lock", 0x1008)}
    arrows = [[(shown.tracks[track.parent_uuid].thread.tid, name, at) for track, name, at in arrow] for arrow in shown.arrows.values()]
    assert sorted(arrows) == [[(1, "holds the GIL", 10), (2, "waits for the GIL", 10)], [(1, "wakes", 60), (2, "woken", 60)]]


def test_perfettos_cores_are_as_busy_as_the_threads_were(tmp_path: Path) -> None:
    first = Script(1, 1, cpu=0).snapshot().enter(0).run(10).wait(40, queued=5).run(5).preempted(20, by=2, cpu=1).run(7).leave()
    second = Script(1, 2, cpu=0, now=15).snapshot().enter(0).run(10).wait(35, queued=0).run(20).wait(5, queued=0).leave().exit()
    rows = sorted(first.sched + second.sched, key=lambda r: r[0])
    threads = [(1, 1, "main", 0, None), (1, 2, "worker", 15, second.now)]
    events = first.events + second.events
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=events, sched=rows, threads=threads, functions=SAMPLE_FUNCTIONS, end_ns=100))
    running: dict[int, tuple[int, int]] = {}
    busy: dict[tuple[int, int], int] = defaultdict(int)
    tasks = sorted(in_perfetto(trace).tasks, key=lambda t: t[0])
    for ts, task in tasks:  # as perfetto's generic_kernel_parser does it
        if task.state == task.TASK_STATE_RUNNING:
            if task.cpu in running:
                tid, since = running[task.cpu]
                busy[task.cpu, tid] += ts - since
            running[task.cpu] = (task.tid, ts)
        elif task.cpu in running and running[task.cpu][0] == task.tid:
            busy[task.cpu, task.tid] += ts - running.pop(task.cpu)[1]
    for cpu, (tid, since) in running.items():
        busy[cpu, tid] += trace.end_ns - since
    on_cpu = states(trace).query("state == 'on_cpu'")
    expected = (on_cpu["end_ns"] - on_cpu["start_ns"]).groupby([on_cpu["cpu"], on_cpu["tid"]]).sum()
    assert busy == expected.to_dict()
    assert {(t.comm, t.tid) for _, t in tasks} == {("main", 1), ("worker", 2)}
    assert [(ts, t.tid) for ts, t in tasks if t.state == t.TASK_STATE_DEAD] == [(second.now, 2)]


def test_perfetto_shows_the_same_however_many_states_come_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pytrace_ebpf.open(sample(tmp_path / "whole"))
    tables = {name: getattr(whole, name)().astype(object) for name in ("events", "sched", "functions", "threads")}
    rows = {name: list(table.where(table.notna(), None).itertuples(index=False, name=None)) for name, table in tables.items()}
    step = (whole.end_ns - whole.start_ns) // 30
    cuts = [whole.start_ns + step * number for number in range(1, 30)]
    path = write_trace(tmp_path / "cut", **rows, start_ns=whole.start_ns, end_ns=whole.end_ns, cuts=cuts)
    middle = (whole.start_ns + whole.end_ns) // 2
    for window in ({}, {"start_ns": middle}, {"end_ns": middle, "tid": whole.threads()["tid"][1]}):
        trace = pytrace_ebpf.open(path).window(**window)
        at_once = in_perfetto(trace)
        with monkeypatch.context() as patched:
            patched.setattr(trace_timeline, "_AT_ONCE", 1)
            by_segment = in_perfetto(trace)
        for shown in (at_once, by_segment):
            shown.tasks = sorted(((ts, str(task)) for ts, task in shown.tasks), key=str)
            shown.arrows = sorted(str(arrow) for arrow in shown.arrows.values())
        for name in ("tasks", "arrows", "behind"):
            assert getattr(at_once, name) == getattr(by_segment, name), name
        assert at_once.of_thread(states=True) == by_segment.of_thread(states=True) and at_once.of_thread(states=False) == by_segment.of_thread(
            states=False
        )


def test_perfetto_opens_a_trace_without_calls_and_scheduling(tmp_path: Path) -> None:
    shown = in_perfetto(pytrace_ebpf.open(write_trace(tmp_path / "empty", start_ns=5)))
    assert not shown.slices and shown.clocks[0].clocks[0].timestamp == 5


def test_speedscope_holds_every_call(trace: Trace) -> None:
    out = io.BytesIO()
    speedscope.write(trace, out)
    document = json.loads(out.getvalue())
    frames, found = document["shared"]["frames"], []
    assert document["$schema"].endswith("file-format-schema.json") and len(document["profiles"]) == 3
    for profile in document["profiles"]:
        stack: list[tuple[int, int]] = []
        at = profile["startValue"]
        tid = int(profile["name"].split("tid ")[1].rstrip(")"))
        for event in profile["events"]:
            assert at <= event["at"] <= profile["endValue"] and profile["unit"] == "nanoseconds"
            at = event["at"]
            if event["type"] == "O":
                stack.append((event["frame"], at))
            else:
                index, start = stack.pop()
                assert index == event["frame"]
                found.append((tid, frames[index]["name"], start + trace.start_ns, at + trace.start_ns))
        assert not stack
    assert sorted(found) == spans(trace)


def test_speedscope_events_join_over_chunks(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, pieces = io.BytesIO(), io.BytesIO()
    speedscope.write(trace, whole)
    monkeypatch.setattr(speedscope, "_CHUNK", 7)
    speedscope.write(trace, pieces)
    assert pieces.getvalue() == whole.getvalue()


def test_speedscope_of_many_calls_holds_the_time_of_every_path(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedscope, "MOST_CALLS", 10)
    out = io.BytesIO()
    assert not speedscope.write(trace, out)
    file = json.loads(out.getvalue())
    calls = trace.calls()
    names = {row[3]: row[0] for row in SAMPLE_FUNCTIONS}
    for profile, (_, own) in zip(file["profiles"], calls.groupby("tid"), strict=True):
        assert profile["type"] == "sampled" and len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"]) == own["self_wall_ns"].sum()
        by_function: dict[int, int] = defaultdict(int)
        for sample_, weight in zip(profile["samples"], profile["weights"], strict=True):
            by_function[names[file["shared"]["frames"][sample_[-1]]["name"]]] += weight
        expected = own.groupby("func_id")["self_wall_ns"].sum()
        assert dict(by_function) == expected[expected > 0].to_dict()


def test_what_has_no_room_in_the_tree_stands_by_itself(trace: Trace) -> None:
    few = to_frame(grow(trace, 6), TREE)
    found = list(paths(few, few["self_ns"].to_numpy(np.int64)))
    assert sum(weight for _, weight in found) == trace.tree()["self_ns"].sum()
    assert any(few["pid"] < 0)
    lengths = [len(path) for path, _ in paths(few[few["pid"] < 0], few.loc[few["pid"] < 0, "self_ns"].to_numpy(np.int64))]
    assert set(lengths) == {2}


def test_what_lies_deeper_than_is_shown_stands_by_its_function(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has each path as a whole: of a deep recursion that would be its depth squared."""
    tree_, most = trace.tree(), 3
    assert tree_["depth"].max() > most + 1
    whole, cut = (defaultdict(int) for _ in range(2))
    for path, weight in paths(tree_, tree_["self_ns"].to_numpy(np.int64)):
        whole[tuple(path if len(path) <= most else [*path[:most], NO_CONTEXT, path[-1]])] += weight
    monkeypatch.setattr(export_paths, "MOST_FRAMES", most)
    for path, weight in paths(tree_, tree_["self_ns"].to_numpy(np.int64)):
        assert tuple(path) not in cut
        cut[tuple(path)] = weight
    assert cut == whole and any(NO_CONTEXT in path for path in cut)


@pytest.mark.parametrize("value", parts.VALUES)
def test_folded_sums_the_self_time_of_every_stack(trace: Trace, value: str) -> None:
    out = io.BytesIO()
    folded.write(trace, value, out)
    calls = with_self(trace.calls()).set_index("call_id")
    expected: dict[str, int] = defaultdict(int)
    for row in calls.itertuples():
        names, above = [], row
        while True:
            names.append(NAMES[above.func_id])
            if above.parent_id < 0:
                break
            above = calls.loc[above.parent_id]
        expected[";".join(reversed(names))] += getattr(row, f"self_{value}_ns")
    found = {}
    for line in out.getvalue().decode().splitlines():
        stack, _, weight = line.rpartition(" ")
        found[";".join(frame.rpartition(" (")[0] for frame in stack.split(";"))] = int(weight)
    assert found == {stack: weight for stack, weight in expected.items() if weight}


@pytest.mark.parametrize("least", [0.0, 0.02, 0.3, 1.0])
def test_what_takes_little_is_summed_below_its_caller(trace: Trace, least: float) -> None:
    tree_ = trace.tree()
    weight = tree_["self_ns"].to_numpy(np.int64)
    every, kept = ([(tuple(path), ns) for path, ns in paths_in(merged(tree_, weight), share)] for share in (0.0, least))
    below: dict[tuple[int, ...], int] = defaultdict(int)  # with all that is called there
    for path, ns in every:
        for depth in range(1, len(path) + 1):
            below[path[:depth]] += ns
    limit = least * sum(ns for _, ns in every)
    expected: dict[tuple[int, ...], int] = defaultdict(int)
    for path, ns in every:
        depth = next((depth for depth in range(1, len(path) + 1) if below[path[:depth]] < limit), None)
        expected[path if depth is None else (*path[: depth - 1], small.OTHER)] += ns
    assert dict(kept) == expected and len(dict(kept)) == len(kept)
    assert (small.OTHER in {path[-1] for path in dict(kept)}) == (least > 0)


def events_of(text: str) -> tuple[int, dict[str, int]]:
    """The sum of own wall time in a file of Callgrind's, and by function: own time and that of the calls made in it."""
    own, total, names, function, is_call = 0, defaultdict(int), dict[str, str](), "", False
    for line in text.splitlines():
        if line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            function = names.setdefault(number, name)
        elif line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            names.setdefault(number, name)
        elif line.startswith("calls="):
            is_call = True
        elif line[:1].isdigit():
            ns = int(line.split()[1])
            own, total[function], is_call = own + (0 if is_call else ns), total[function] + ns, False
    return own, dict(total)


@pytest.mark.parametrize("least", [0.02, 0.3])
def test_callgrind_sums_functions_that_take_little(trace: Trace, least: float) -> None:
    files = []
    for share in (0.0, least):
        out = io.BytesIO()
        assert callgrind.write(trace, out, share) == ""
        files.append(events_of(out.getvalue().decode()))
    (own, every), (own_kept, kept) = files
    assert own == own_kept and len(kept) <= len(every) and "(other)" in kept
    assert all(kept[name] == every[name] for name in kept if name != "(other)")  # with what they call


@pytest.mark.parametrize("to", ["folded", "callgrind"])
def test_a_file_that_would_be_large_has_what_takes_most_and_says_so(
    trace: Trace, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["export", str(trace.directory), "--to", to, "-o"]
    assert main([*words, "all"]) == 0 and "(other)" not in capsys.readouterr().err
    monkeypatch.setattr(small, "MOST", (tmp_path / "all").stat().st_size - 1)
    monkeypatch.setattr(small, "_SHARES", (0.3,))
    assert main([*words, "large"]) == 0
    assert "what takes under 30 % of all time is summed as (other), as the file would have more than" in capsys.readouterr().err
    assert main([*words, "same", "--min", "30%"]) == 0 and "(other)" not in capsys.readouterr().err
    assert (tmp_path / "same").read_bytes() == (tmp_path / "large").read_bytes() and b"(other)" in (tmp_path / "large").read_bytes()
    assert main([*words, "whole", "--min", "0"]) == 0 and (tmp_path / "whole").read_bytes() == (tmp_path / "all").read_bytes()
    assert main(["export", str(trace.directory), "--to", "pprof", "--min", "1%"]) == 2


def test_folded_calls_a_file_by_the_end_that_has_its_modules_name_where_that_is_clear(tmp_path: Path) -> None:
    files = [
        ("/venv/lib/sphinx/cmd/build.py", "sphinx.cmd.build", "sphinx/cmd/build.py"),
        ("/venv/lib/sphinx/__init__.py", "sphinx", "sphinx/__init__.py"),
        ("/home/app.py", "__main__", "/home/app.py"),  # a script
        ("/one/util.py", "util", "/one/util.py"),  # two that would be called the same
        ("/two/util.py", "util", "/two/util.py"),
        ("/venv/mysphinx.py", "sphinx", "/venv/mysphinx.py"),
        ("", "built-in", ""),
    ]
    functions = [(k, file, f"f{k}", f"f{k}", 7, module) for k, (file, module, _) in enumerate(files)]
    script = Script(1, 1)
    for k in range(len(files)):
        script = script.enter(k).run(10).leave()
    out = io.BytesIO()
    folded.write(pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=functions)), "wall", out)
    expected = {f"f{k} ({short}:7) 10" if short else f"f{k} (:7) 10" for k, (_, _, short) in enumerate(files)}
    assert set(out.getvalue().decode().splitlines()) == expected


def test_folded_says_when_there_is_nothing_to_sum(tmp_path: Path) -> None:
    script = Script(1, 1).enter(0).run(10).leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=SAMPLE_FUNCTIONS))
    with pytest.raises(UsageError, match="no scheduling"):
        folded.write(trace, "gil_wait", io.BytesIO())
    out = io.BytesIO()
    folded.write(trace, "wall", out)
    assert out.getvalue() == b"<module> (main.py:1) 10\n"


def test_a_hand_made_tree_has_the_shape_its_author_meant() -> None:
    calls = frame({1: [Call(0, 1, [Call(1, 2), Call(1, 3)])]})
    assert calls["wall_ns"].tolist() == [6, 2, 3] and calls["last_descendant_id"].tolist() == [2, 1, 2]


def test_chrome_holds_every_call(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_ROOM", 1)  # a few events at a time
    out = io.BytesIO()
    chrome.write(trace, out)
    found, named = [], {}
    open_: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for event in json.loads(out.getvalue(), parse_float=str)["traceEvents"]:
        if event["ph"] == "M":
            named[event["name"], event["tid"]] = event["args"]["name"]
            continue
        us, _, ns = str(event["ts"]).partition(".")
        at = int(us) * 1000 + int(ns) + trace.start_ns
        if event["ph"] == "B":
            assert event["pid"] == 4000 and event["cat"] == "python"
            open_[event["tid"]].append((event["name"].partition(" (")[0], at))
        else:
            name, start = open_[event["tid"]].pop()
            found.append((event["tid"], name, start, at))
    assert sorted(found) == spans(trace) and not any(open_.values())
    assert named["process_name", 4000] == "python3 app.py" and named["thread_name", 4001] == "worker-1"


def test_chrome_names_what_a_program_chose(tmp_path: Path) -> None:
    functions = [(0, '/a"b\\.py', "f", 'f"</script>\n\x1b', 3, "m", 0, "python")]
    script = Script(1, 1).enter(0).run(1_234_567).enter(9).leave().leave()
    path = write_trace(tmp_path / "t", events=script.events, functions=functions, threads=[(1, 1, '"}]\x00', 0, None)])
    out = io.BytesIO()
    chrome.write(pytrace_ebpf.open(path), out)
    events = json.loads(out.getvalue())["traceEvents"]
    assert [event.get("name") for event in events if event["ph"] != "M"] == ['f"</script> ? (/a"b\\.py:3)', "(unknown)", None, None]
    assert events[1]["ts"] == 1234.567 and events[-1]["args"]["name"] == '"}]?'


def test_chrome_of_no_calls_is_a_document(tmp_path: Path) -> None:
    out = io.BytesIO()
    chrome.write(pytrace_ebpf.open(write_trace(tmp_path / "empty", start_ns=5)), out)
    assert all(event["ph"] == "M" for event in json.loads(out.getvalue())["traceEvents"])
