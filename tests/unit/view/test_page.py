"""The page of `report --html` holds what the trace holds, runs no script but its own, and does in a browser what it says."""

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import of_tree
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.view.page import excerpts, page_tables, timeline
from tests import browser
from tests.browser import Browser
from tests.unit import synthetic
from tests.unit.analyze.test_findings import DATABASE, HANDLE, MS, RECVFROM, RESOURCES
from tests.unit.analyze.test_findings import FUNCTIONS as SHOP
from tests.unit.analyze.test_samples import COUNTS, sampled
from tests.unit.synthetic import FUTEX, Script, sample, write_trace

REPOSITORY = Path(__file__).parents[3]
EVIL = "</script><img src=x onerror=hacked=1><b>&amp;\x1b[2J\u2028--><!--"
in_browser = pytest.mark.skipif(not browser.CHROMIUM, reason="there is no Chromium")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return sample(tmp_path / "trace")


def made(directory: Path, *words: str) -> Path:
    page = directory.parent / "page.html"
    assert main(["report", str(directory), "--html", str(page), *words]) == 0
    return page


def unpacked(page: Path) -> tuple[dict[str, Any], bytes]:
    text = re.findall(r'<script type="application/octet-stream" id="trace">(.*?)</script>', page.read_text(), re.DOTALL)[0]
    content = gzip.decompress(base64.b64decode(text))
    length = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + length]), content[4 + length :]


def numbers(column: dict[str, int], block: bytes) -> Any:
    of_place = np.frombuffer(block, np.uint8, column["width"] * column["n"], column["at"]).reshape(column["width"], column["n"])
    return sum((of_place[k].astype(np.int64) << (8 * k) for k in range(column["width"])), np.zeros(column["n"], np.int64)) + column["least"]


def boxes(of: dict[str, Any], block: bytes) -> list[dict[str, int]]:
    lane, box = ({name: numbers(column, block) for name, column in of[side].items()} for side in ("lanes", "boxes"))
    thread, depth = np.repeat(lane["thread"], lane["count"]), np.repeat(lane["depth"], lane["count"])
    end = np.concatenate([np.cumsum(own) for own in np.split(box["gap"] + box["length"], np.cumsum(lane["count"])[:-1])])
    columns = {
        "thread": thread,
        "depth": depth,
        "start": end - box["length"],
        "end": end,
        **{name: box[name] for name in ("func", "calls", "gil_wait")},
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*(column.tolist() for column in columns.values()), strict=True)]


def test_a_small_trace_is_there_call_by_call(directory: Path) -> None:
    trace, (page, block) = pytrace_ebpf.open(directory), unpacked(made(directory))
    tids = page["threads"]["tid"]
    found = {
        (tids[b["thread"]], b["depth"], b["start"] + trace.start_ns, b["end"] + trace.start_ns, b["func"], b["gil_wait"], b["calls"])
        for b in boxes(page["calls_of"], block)
    }
    calls = trace.calls()
    columns = (calls[name] for name in ("tid", "depth", "start_ns", "end_ns", "func_id", "gil_wait_ns"))
    assert found == {(*map(int, row), 1) for row in zip(*columns, strict=True)} and len(found) == len(calls) == page["calls"]
    assert page["moments"] == [] and page["merged_below_ns"] == 0


def test_of_a_long_trace_the_calls_are_summed_and_some_moments_whole(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MOST_BOXES", 40)
    monkeypatch.setattr(excerpts, "_CALLS", 20)
    trace, (page, block) = pytrace_ebpf.open(directory), unpacked(made(directory))
    whole, calls = boxes(page["calls_of"], block), trace.calls()
    assert len(whole) <= 40 < sum(b["calls"] for b in whole) == len(calls) and page["merged_below_ns"] > 0
    assert sum(b["gil_wait"] for b in whole) == calls["gil_wait_ns"].sum()
    assert len(page["moments"]) > 2
    edges = [(m["start"], m["end"]) for m in page["moments"]]
    assert all(end <= later for (_, end), (later, _) in zip(edges, edges[1:], strict=False))
    for moment in page["moments"]:
        within = calls[(calls["start_ns"] < moment["end"] + trace.start_ns) & (calls["end_ns"] > moment["start"] + trace.start_ns)]
        shown = boxes(moment, block)
        assert all(b["calls"] == 1 for b in shown) and len(shown) == len(within)
        assert sorted(b["func"] for b in shown) == sorted(within["func_id"])


def test_paths_functions_and_pairs_are_those_of_the_report(directory: Path) -> None:
    trace, (page, block) = pytrace_ebpf.open(directory), unpacked(made(directory))
    table = of_tree(trace.tree(), trace.functions()).set_index("func_id")
    for name in ("calls", "total_ns", "self_ns", "self_gil_wait_ns"):
        assert numbers(page["functions"][name], block)[table.index].tolist() == table[name].tolist()
    for tree in ("tree", "tree_by_thread"):
        columns = {name: numbers(column, block) for name, column in page[tree]["columns"].items()}
        own = np.bincount(columns["func"] + 1, columns["self_ns"], len(page["functions"]["names"]) + 1)[1:]
        assert own[table.index].tolist() == table["self_ns"].tolist() and page[tree]["left_out"] == 0
        below = columns["parent"] >= 0
        assert (columns["parent"][below] < np.flatnonzero(below)).all()
    pairs = {name: numbers(column, block) for name, column in page["pairs"]["columns"].items()}
    for name in ("calls", "total_ns", "self_ns"):
        assert np.bincount(pairs["callee"], pairs[name])[table.index].tolist() == table[name].tolist()


def test_requests_are_there_by_endpoint_and_one_by_one(directory: Path) -> None:
    trace, (page, _) = pytrace_ebpf.open(directory), unpacked(made(directory, "--request", "fib"))
    requests, table = trace.requests(patterns=["fib"]), page["tables"]["request"]
    assert page["view"] == "requests" and table["count"] == 1 and table["all"] == len(requests) == table["rows"][0]["requests"] > 0
    assert [row["wall_ns"] for row in table["longest"]] == sorted(requests["wall_ns"], reverse=True)
    assert {row["start_ns"] + trace.start_ns for row in table["longest"]} == set(requests["start_ns"])
    assert unpacked(made(directory))[0]["tables"]["request"]["all"] == 0


def test_resources_and_what_was_asked_are_tables_and_locks_of_one_function_are_one_row(tmp_path: Path) -> None:
    urlopen = len(SHOP)
    one = Script(7, 7, now=10).snapshot()
    for number in range(4):  # outside of all calls, and in one function
        one.wait(MS, syscall=FUTEX, address=0x9000 + 64 * number)
        one.enter(HANDLE).wait(2 * MS, syscall=FUTEX, address=0xA000 + 64 * number).leave()
    calls = [(one.now, 7, 7, "urllib", "http://shop/item/?", "complete")]
    one.enter(HANDLE).enter(urlopen).wait(5 * MS, syscall=RECVFROM, resource=DATABASE).leave().leave()
    functions = [*SHOP, (urlopen, "/usr/lib/python3.11/urllib/request.py", "urlopen", "urlopen", 200, "urllib.request")]
    rows = {"events": one.events, "sched": one.sched, "client_calls": calls, "functions": functions, "resources": RESOURCES, "end_ns": one.now + 10}
    page, _ = unpacked(made(write_trace(tmp_path / "trace", **rows)))
    waits = {row["primitive"]: row for row in page["tables"]["wait"]["rows"] if row["kind"] == "lock"}
    assert set(waits) == {"4 locks", "4 locks outside of Python"} and waits["4 locks"]["qualname"] == "handle"
    assert [waits[name]["waits"] for name in sorted(waits)] == [4, 4] and waits["4 locks outside of Python"]["total_ns"] == 4 * (MS + 5_000)
    (resource,) = page["tables"]["resource"]["rows"]
    assert (resource["resource"], resource["syscalls"], resource["waits"], resource["qualname"]) == (
        "postgres 10.0.0.7:5432",
        "recvfrom",
        1,
        "urlopen",
    )
    (asked,) = page["tables"]["client"]["rows"]
    assert (asked["statement"], asked["count"], asked["qualname"]) == ("http://shop/item/?", 1, "handle")
    assert page["findings"] and not any("GIL" in line for line in page["findings"])


def test_every_thread_is_there_however_short_tables_are(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_tables, "_MOST_ROWS", 1)
    page, _ = unpacked(made(directory))
    assert page["threads"]["tid"] == [4000, 4001, 4002] and page["processes"] == {"4000": "app.py"}


def test_names_that_a_program_chose_do_nothing_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "SAMPLE_FUNCTIONS", [(f, EVIL, EVIL, EVIL, line, EVIL) for f, _, _, _, line, _ in synthetic.SAMPLE_FUNCTIONS])
    text = made(sample(tmp_path / "trace")).read_text()
    assert text.lower().count("<script") == text.lower().count("</script>") == 2 and "onerror" not in text and "\x1b" not in text
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy and "http" not in policy
    for element, what in (
        ("script", re.findall(r"<script>(.*?)</script>", text, re.DOTALL)),
        ("style", re.findall(r"<style>(.*?)</style>", text, re.DOTALL)),
    ):
        assert f"{element}-src 'sha256-{base64.b64encode(hashlib.sha256(what[0].encode()).digest()).decode()}'" in policy


@pytest.mark.parametrize(
    ("words", "said"), [(("--html", "no/such/page.html"), "cannot be written"), (("--html", "page.html", "--compensate"), "leave one of them out")]
)
def test_what_cannot_be_done_is_said(directory: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(directory), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(not (shutil.which("node") and (REPOSITORY / "page/node_modules").is_dir()), reason="needs node, and npm ci in page/")
def test_the_page_is_what_its_sources_make() -> None:
    done = subprocess.run(["node", "build.mjs", "--check"], cwd=REPOSITORY / "page", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_pinned_packages_name_no_place() -> None:
    lock = (REPOSITORY / "page/package-lock.json").read_text()
    versions = json.loads((REPOSITORY / "page/package.json").read_text())
    assert "resolved" not in lock and "integrity" in lock
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for kind in ("dependencies", "devDependencies") for version in versions[kind].values())


@in_browser
def test_in_a_browser_it_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = [
        (f, EVIL if f == 5 else file, EVIL if f == 5 else name, EVIL if f == 5 else qualname, line, module)
        for f, file, name, qualname, line, module in synthetic.SAMPLE_FUNCTIONS
    ]
    monkeypatch.setattr(synthetic, "SAMPLE_FUNCTIONS", evil)
    page = made(sample(tmp_path / "trace"))
    with Browser() as seen:
        seen.open(page)
        assert "computes 58 % of the time" in seen.js("main.innerText") and seen.js("document.title").endswith("pytrace-ebpf")
        views = seen.js("document.querySelectorAll('#views button').length")
        for number in range(1, views + 1):
            seen.press(str(number))
            assert seen.js("document.querySelector('#views [aria-selected=true]').textContent") == seen.js(
                f"document.querySelectorAll('#views button')[{number - 1}].textContent"
            )
            assert seen.js("main.childElementCount") > 0
        _search(seen)
        _zoom(seen, page)
        _evil(seen, page)
        assert seen.errors == []


def _search(seen: Browser) -> None:
    seen.press("4", "/")
    seen("Input.insertText", text="work.py step")
    assert seen.wait("document.querySelector('#found').textContent") == "1 function"
    assert seen.js("[...document.querySelectorAll('.two > div:first-child tbody tr')].map(row => row.innerText).join()").count("Worker.step") == 1
    called = "[...document.querySelectorAll('.two > div:last-child table.rows')].map(t => t.innerText)"
    assert "Worker.run" in seen.js(called)[0] and "fib" in seen.js(called)[1]
    seen.press("Enter", "Escape")
    assert seen.js("document.querySelector('#find').value + document.querySelector('#found').textContent") == ""


def _zoom(seen: Browser, page: Path) -> None:
    length = "(p => p.get('b') - p.get('a'))(new URLSearchParams(location.hash.slice(1)))"
    shown = "document.querySelector('.tools').innerText"
    seen.press("2")
    whole = seen.js(shown)
    seen.press(*"+" * 14)
    seen.wait(f"{length} > 0")
    seen.wait(f"{shown} !== {json.dumps(whole)} && {shown}.includes('µs shown')")
    assert 0 < seen.js(length) < 20_000
    link = seen.js("location.hash.slice(1)")
    seen.press("ArrowRight")
    seen.wait(f"location.hash.slice(1) !== {json.dumps(link)}")
    seen.press("0")
    seen.wait(f"{shown} === {json.dumps(whole)}")
    seen.open(page, link)  # a link holds the view
    seen.wait(f"{shown}.includes('µs shown')")


def _evil(seen: Browser, page: Path) -> None:
    seen.open(page, "view=functions&f=5&theme=dark")
    assert "</script><img src=x" in seen.js("document.querySelector('.two > div:last-child').innerText")
    assert seen.js("document.images.length") == 0 and seen.js("typeof hacked") == "undefined"
    assert seen.js("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"


@in_browser
def test_in_a_browser_keys_go_through_calls_and_rows_and_ticks_are_those_of_the_picture(tmp_path: Path) -> None:
    at, second = 7 * 10**9, 10**9
    calls = [(at + 1000 * k, 1, 1, k % 2, 0, 1, 1) for k in range(6)]
    events = [(0, 1, 2, 0, 0, 1, 1), (second, 1, 2, 1, 0, 1, 1), *calls]
    page = made(write_trace(tmp_path / "trace", events=events, functions=synthetic.SAMPLE_FUNCTIONS, end_ns=8 * second))
    shown, reached = "document.querySelector('.tools .note').textContent", "+new URLSearchParams(location.hash.slice(1)).get('a')"
    drawn = """(proto => { window.words = []; const own = proto.fillText; proto.fillText = function (text, ...at) { words.push(text); own.call(this, text, ...at); }; })
        (CanvasRenderingContext2D.prototype)"""
    with Browser() as seen:
        seen.open(page, "view=timeline")
        name = seen.js("document.querySelector('#find').value = ''") or synthetic.SAMPLE_FUNCTIONS[0][3]
        assert "not shown" not in seen.js(shown)
        seen.press("/")
        seen("Input.insertText", text=name)
        places = []
        for key in ("Enter", "n", "n", "n", "N"):
            before = seen.js("location.hash")
            seen.press(key)
            seen.wait(f"location.hash !== {json.dumps(before)}")
            places.append(seen.js(reached))
            assert seen.js("document.querySelector('#find').value") == name  # no key is typed
        first, *others, back = places
        assert first == 0 and others == sorted(others) and others[0] > 6 * second and back == others[-2]
        assert "1 thread has ended or not begun" in seen.wait(shown)
        seen.js(drawn)
        seen.press("Escape", *"+" * 6)
        seen.wait("words.some(word => word.startsWith('7.') && word.endsWith(' s and'))")
        assert all(word.startswith("+") for word in seen.js("words") if re.fullmatch(r"\S+ (s|ms|µs|ns)", word))
        assert seen.errors == []


@in_browser
def test_in_a_browser_many_processes_are_a_row_each(tmp_path: Path) -> None:
    threads = [(pid, 100 * pid + k) for pid in range(1, 5) for k in range(15)]
    events = [row for at, (pid, tid) in enumerate(threads) for row in ((1000 * at, pid, tid, 0, 0, 1, 1), (1000 * at + 90_000, pid, tid, 1, 0, 1, 1))]
    page = made(write_trace(tmp_path / "trace", events=events, functions=synthetic.SAMPLE_FUNCTIONS))
    scrolls = "parseFloat(document.querySelector('.canvas > div').style.height)"
    with Browser() as seen:
        seen.open(page, "view=timeline")
        assert seen.js(scrolls) == 0
        seen.press("c")
        all_threads = seen.wait(scrolls)
        seen.js("document.querySelector('.tools input').focus()")
        seen("Input.insertText", text="thread-31")
        seen.wait(f"{scrolls} < {all_threads} / 2 && location.hash.includes('thread-31')")
        assert seen.errors == []


@in_browser
def test_in_a_browser_samples_are_counted_as_samples(tmp_path: Path) -> None:
    trace = sampled(tmp_path)
    with Browser() as seen:
        seen.open(made(trace.directory))
        cards = seen.js("[...document.querySelectorAll('.card')].map(card => card.innerText)")
        assert f"{sum(COUNTS.values())}\nsamples" in cards
        seen.press("2")
        drawn = "(map => [...map.getContext('2d').getImageData(0, 0, map.width, map.height).data])(document.querySelector('#overview'))"
        green = [int("009e73"[at : at + 2], 16) for at in (0, 2, 4)]
        pixels = seen.wait(drawn)
        assert any(pixels[at : at + 3] == green for at in range(0, len(pixels), 4))  # what was sampled on a core
        assert seen.errors == []
