"""Profiles for pprof and OpenTelemetry hold the time of every context, read back by protobuf's own library from the published descriptions."""

import io
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import with_self
from pytrace_ebpf.trace.frames import to_frame
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import TREE
from pytrace_ebpf.view.export import contexts, otlp, pprof
from pytrace_ebpf.view.export.contexts import of_tree
from tests.conftest import PATIENCE_S
from tests.unit.analyze.test_samples import FUNCTIONS as SAMPLED_FUNCTIONS
from tests.unit.analyze.test_samples import PERIOD, sampled
from tests.unit.pprof_format import PROFILE, Key, parse, samples
from tests.unit.synthetic import SAMPLE_FUNCTIONS, Script, sample, write_trace
from tests.unit.trees import grow

PLACES = {row[0]: (row[3], row[1], max(row[4], 0), max(row[4], 0)) for row in SAMPLE_FUNCTIONS}
FOUR = ("on_cpu", "runq_wait", "gil_wait", "blocked")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return pytrace_ebpf.open(sample(tmp_path_factory.mktemp("sample")))


def in_pprof(trace: Trace) -> Any:
    out = io.BytesIO()
    pprof.write(trace, out)
    return parse(out.getvalue())


def expected(trace: Trace) -> dict[Key, dict[str, int]]:
    """By a walk from every call to its outermost caller."""
    calls = with_self(trace.calls()).set_index("call_id")
    names = {(row.pid, row.tid): row.name for row in trace.threads().itertuples()}
    found: dict[Key, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in calls.itertuples():
        path, above = [PLACES[row.func_id]], row
        while above.parent_id >= 0:
            above = calls.loc[above.parent_id]
            path.append(PLACES[above.func_id])
        own = found[row.tid, names[row.pid, row.tid], tuple(reversed(path))]
        own["calls"] += 1
        own["wall"] += row.self_wall_ns
        for name in FOUR:
            own[name] += getattr(row, f"self_{name}_ns")
    return {key: dict(values) for key, values in found.items()}


def test_pprof_has_every_context_of_every_thread_by_all_four_ways(trace: Trace) -> None:
    profile = in_pprof(trace)
    found = samples(profile)
    assert found == expected(trace)
    assert all(values["wall"] == sum(values[name] for name in FOUR) for values in found.values())
    text = profile.string_table
    assert [(text[each.type], text[each.unit]) for each in profile.sample_type] == [
        ("calls", "count"), *((name, "nanoseconds") for name in ("wall", *FOUR)),
    ]  # fmt: skip
    assert text[profile.default_sample_type] == "wall" and profile.duration_nanos == trace.end_ns - trace.start_ns
    assert profile.time_nanos == trace.manifest["clock"][0]["realtime_ns"] and not profile.period


def test_a_window_has_what_lies_within(trace: Trace) -> None:
    middle = (trace.start_ns + trace.end_ns) // 2
    window = trace.window(trace.start_ns, middle, tid=4001)
    found, profile = samples(in_pprof(window)), in_pprof(window)
    assert {tid for tid, *_ in found} == {4001}
    assert sum(values["wall"] for values in found.values()) == window.tree()["self_ns"].sum() > 0
    assert profile.duration_nanos == middle - trace.start_ns
    later = in_pprof(trace.window(middle, trace.end_ns))
    assert later.time_nanos == profile.time_nanos + middle - trace.start_ns


def test_sampled_stacks_have_the_lines_that_they_were_taken_at(tmp_path: Path) -> None:
    trace = sampled(tmp_path)
    profile = in_pprof(trace)
    found = samples(profile)
    stacks = {row.stack_id: row for row in trace.whole.part("stacks", 0).to_pandas().itertuples()}
    known = {row[0]: (row[3], row[1], row[4]) for row in SAMPLED_FUNCTIONS}
    wanted: dict[Any, int] = defaultdict(int)
    for row in trace.whole.part("samples", 0).to_pandas().itertuples():
        path, at = [], row.stack_id
        while at >= 0:
            name, file, first = known.get(stacks[at].func_id, ("(unknown)", "", 0))
            path.append((name, file, stacks[at].line if stacks[at].func_id >= 0 and stacks[at].line > 0 else 0, max(0, first)))
            at = stacks[at].parent_id
        if row.stack_id == -2:
            path = [("(unknown)", "", 0, 0)]
        if path:
            wanted[row.tid, tuple(reversed(path))] += 1
    assert {(tid, path): values["samples"] for (tid, _, path), values in found.items()} == dict(wanted)
    assert len({frame[2] for _, _, path in found for frame in path}) > 4  # lines
    assert all(values["wall"] == values["on_cpu"] == PERIOD * values["samples"] for values in found.values())
    assert profile.period == PERIOD and {profile.string_table[each.type] for each in profile.sample_type} == {"samples", "wall", "on_cpu"}


def test_only_ways_that_are_known_are_there(tmp_path: Path) -> None:
    script = Script(1, 1).enter(0).run(10).enter(1).run(5).leave().leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=SAMPLE_FUNCTIONS, manifest={"clock": []}))
    profile = in_pprof(trace)
    assert {profile.string_table[each.type] for each in profile.sample_type} == {"calls", "wall", "not_recorded"} and profile.time_nanos == 0
    assert [(values["wall"], values["not_recorded"]) for values in samples(profile).values()] == [(10, 10), (5, 5)]


def test_a_trace_without_calls_is_a_profile_too(tmp_path: Path) -> None:
    empty = pytrace_ebpf.open(write_trace(tmp_path / "t", start_ns=5))
    assert not samples(in_pprof(empty)) and not in_otlp(empty).resource_profiles


def test_what_has_no_room_in_the_tree_stands_below_further_contexts(trace: Trace) -> None:
    small = to_frame(grow(trace, 6), TREE)
    found = of_tree(small, trace.functions(), trace.threads(), ["ns"])
    profile = PROFILE.FromString(b"".join(pprof.profile(found, pprof.Span(0, 1), "/p")))
    by_stack = samples(profile)
    assert sum(values["wall"] for values in by_stack.values()) == trace.tree()["self_ns"].sum()
    further = [path for tid, _, path in by_stack if tid is None]
    assert further and all(path[0][0] == "(further contexts)" and len(path) == 2 for path in further)


def test_of_a_very_deep_stack_the_innermost_frames_are_kept(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = samples(in_pprof(trace))
    monkeypatch.setattr(contexts, "MOST_FRAMES", 3)
    monkeypatch.setattr(contexts, "_AT_ONCE", 7)  # a few stacks at a time
    cut: dict[Key, int] = defaultdict(int)
    for (tid, name, path), values in whole.items():
        cut[tid, name, path if len(path) <= 3 else (("(further contexts)", "", 0, 0), *path[-3:])] += values["wall"]
    assert {key: values["wall"] for key, values in samples(in_pprof(trace)).items()} == dict(cut)
    assert max(len(path) for _, _, path in whole) > 4
    assert len(in_otlp(trace).dictionary.stack_table)


def test_names_that_a_program_chose_stay_names(tmp_path: Path) -> None:
    functions = [(0, "/a\n\x1b[31m.py", "f", "f\x00;\u202e\ud800".encode("utf-8", "replace").decode(), 3, "m", 0, "python")]
    script = Script(1, 1).enter(0).run(10).leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path / "t", events=script.events, functions=functions, threads=[(1, 1, "t\r\n\x07" * 9, 0, None)]))
    ((_, name, ((qualname, file, *_),)),) = samples(in_pprof(trace))
    assert all(text.isprintable() for text in (name, qualname, file)) and file == "/a ?[31m.py"
    assert all(text.isprintable() for text in in_otlp(trace).dictionary.string_table)


@pytest.mark.skipif(not shutil.which("go"), reason="Go is not installed: go tool pprof comes with it")
def test_go_tool_pprof_opens_it(trace: Trace, tmp_path: Path) -> None:
    with (tmp_path / "p.pb.gz").open("wb") as out:
        pprof.write(trace, out)
    words = ["go", "tool", "pprof", "-sample_index=gil_wait", "-unit=ns", "-top", str(tmp_path / "p.pb.gz")]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    assert f"Total samples = {trace.tree()['self_gil_wait_ns'].sum()}ns" in shown


def in_otlp(trace: Trace) -> Any:
    service = pytest.importorskip(
        "opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2", reason="needs pip install opentelemetry-proto"
    )
    out = io.BytesIO()
    otlp.write(trace, out)
    return service.ExportProfilesServiceRequest.FromString(out.getvalue())


def of_otlp(request: Any) -> dict[Key, dict[str, int]]:
    """As pprof_format.samples."""
    of = request.dictionary
    for table in ("mapping", "location", "function", "link", "attribute", "stack"):
        first = getattr(of, f"{table}_table")[0]
        assert first == type(first)(), table
        rows = [each.SerializeToString(deterministic=True) for each in getattr(of, f"{table}_table")]
        assert table == "stack" or len(set(rows)) == len(rows), table
    assert of.string_table[0] == "" and len(set(of.string_table)) == len(of.string_table)
    places = []
    for each in of.location_table[1:]:
        (line,) = each.lines
        function = of.function_table[line.function_index]
        places.append((of.string_table[function.name_strindex], of.string_table[function.filename_strindex], line.line, function.start_line))
    found: dict[Key, dict[str, int]] = defaultdict(dict)
    for resource in request.resource_profiles:
        ((profiles, scope),) = ((each.profiles, each.scope) for each in resource.scope_profiles)
        assert scope.name == "pytrace-ebpf" and len({each.profile_id for each in profiles}) == len(profiles)
        for profile in profiles:
            kind = of.string_table[profile.sample_type.type_strindex]
            for sample_ in profile.samples:
                (value,) = sample_.values
                attributes = {of.string_table[of.attribute_table[at].key_strindex]: of.attribute_table[at].value for at in sample_.attribute_indices}
                path = tuple(places[at - 1] for at in reversed(of.stack_table[sample_.stack_index].location_indices))
                tid = attributes["thread.id"].int_value if "thread.id" in attributes else None
                own = found[tid, attributes["thread.name"].string_value, path]
                assert kind not in own and value
                own[kind] = value
    return found


def test_otlp_has_every_context_of_every_thread_by_all_four_ways(trace: Trace) -> None:
    request = in_otlp(trace)
    wanted = {key: {name: value for name, value in values.items() if value} for key, values in expected(trace).items()}
    assert of_otlp(request) == wanted
    stacks = [tuple(each.location_indices) for each in request.dictionary.stack_table]
    assert len(set(stacks)) == len(stacks)  # those of two threads are shared
    (resource,) = request.resource_profiles
    attributes = {each.key: each.value.string_value or each.value.int_value for each in resource.resource.attributes}
    assert attributes == {
        "service.name": "app.py", "process.pid": 4000, "process.executable.name": "python3", "process.executable.path": "/usr/bin/python3",
        "process.runtime.name": "cpython", "process.runtime.version": "3.11.2", "host.name": "sample",
    }  # fmt: skip
    for profile in resource.scope_profiles[0].profiles:
        unit = request.dictionary.string_table[profile.sample_type.unit_strindex]
        assert unit == ("count" if request.dictionary.string_table[profile.sample_type.type_strindex] == "calls" else "nanoseconds")
        assert profile.time_unix_nano == trace.manifest["clock"][0]["realtime_ns"] and profile.duration_nano == trace.end_ns - trace.start_ns


def test_otlp_has_samples_with_their_lines(tmp_path: Path) -> None:
    trace = sampled(tmp_path)
    request = in_otlp(trace)
    assert of_otlp(request) == samples(in_pprof(trace))
    assert all(profile.period == PERIOD for profile in request.resource_profiles[0].scope_profiles[0].profiles)


def test_each_process_is_a_resource_of_its_own(tmp_path: Path) -> None:
    scripts = [Script(pid, pid).snapshot().enter(0).run(pid).leave() for pid in (7, 9)]
    rows = sorted((row for script in scripts for row in script.sched), key=lambda row: row[0])
    trace = pytrace_ebpf.open(
        write_trace(tmp_path / "t", events=[row for script in scripts for row in script.events], sched=rows, functions=SAMPLE_FUNCTIONS)
    )
    request = in_otlp(trace)
    pids = [{each.key: each.value for each in resource.resource.attributes}["process.pid"].int_value for resource in request.resource_profiles]
    assert pids == [7, 9] and len(of_otlp(request)) == 2
