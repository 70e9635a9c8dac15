"""Requests from hand-made traces: which calls are one, what they were for, across segments and resumes; and `report --by request` of them."""

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import pytrace_ebpf
from pytrace_ebpf.analyze.requests.by_request import by_request
from pytrace_ebpf.analyze.requests.one_request import RUN_QUEUE, one_request
from pytrace_ebpf.derive.calls import entry_points
from pytrace_ebpf.trace.schema import CallKind
from pytrace_ebpf.view import requests as view
from tests.unit.synthetic import Row, Script, write_trace

E, R, _, _, UNWIND, RESUME, YIELD, *_ = (int(kind) for kind in CallKind)
SITE = "/venv/lib/python3.11/site-packages"
SERVER, FLASK, DISPATCH, HOOK, VIEW, HELPER, WRAPPER, ASGI, ROUTE, ENDPOINT, SLEEP, HEALTH = range(12)
FUNCTIONS = [
    (SERVER, f"{SITE}/werkzeug/serving.py", "run_wsgi", "WSGIRequestHandler.run_wsgi", 1, "werkzeug.serving", 0),
    (FLASK, f"{SITE}/flask/app.py", "wsgi_app", "Flask.wsgi_app", 1, "flask.app", 0),
    (DISPATCH, f"{SITE}/flask/app.py", "dispatch_request", "Flask.dispatch_request", 9, "flask.app", 0),
    (HOOK, "/app/shop.py", "hook", "hook", 1, "shop", 0),
    (VIEW, "/app/shop.py", "orders", "orders", 11, "shop", 0),
    (HELPER, "/app/shop.py", "helper", "helper", 21, "shop", 0),
    (WRAPPER, f"{SITE}/flask_login/utils.py", "decorated_view", "login_required.<locals>.decorated_view", 1, "flask_login.utils", 0),
    (ASGI, f"{SITE}/uvicorn/protocols/http/h11_impl.py", "run_asgi", "RequestResponseCycle.run_asgi", 1, "uvicorn.protocols.http.h11_impl", 0x80),
    (ROUTE, f"{SITE}/fastapi/routing.py", "run_endpoint_function", "run_endpoint_function", 1, "fastapi.routing", 0x80),
    (ENDPOINT, "/app/api.py", "read", "Api.read", 1, "api", 0x80),
    (SLEEP, "/usr/lib/python3.13t/asyncio/tasks.py", "sleep", "sleep", 1, "asyncio.tasks", 0x80),
    (HEALTH, "/app/shop.py", "health", "health", 31, "shop", 0),
]


def opened(path: Path, *rows: tuple[int, int, int, int], **more: Any) -> Any:
    """Of events (ts, kind, function, frame) of one thread."""
    events: list[Row] = [(ts, 7, 7, kind, func, frame, 1) for ts, kind, func, frame in rows]
    return pytrace_ebpf.open(write_trace(path, events=events, functions=FUNCTIONS, **more))


def lines(trace: Any, *patterns: str) -> list[str]:
    """Requests as lines: kind, endpoint, [start, end], time suspended, status."""
    rows = trace.requests(patterns=patterns).to_dict("records")
    return [f"{r['kind']} {FUNCTIONS[r['endpoint_func_id']][2]} [{r['start_ns']}, {r['end_ns']}] {r['awaited_ns']} {r['status']}" for r in rows]


def nested(*calls: Any) -> list[tuple[int, int, int, int]]:
    """Events of (function, begin, end, calls below...)."""
    out = []
    for function, begin, end, *below in calls:
        out += [(begin, E, function, begin), *nested(*below), (end, R, function, begin)]
    return out


WEB = nested(
    (HELPER, 1, 2),
    (SERVER, 10, 90, (FLASK, 12, 88, (HOOK, 14, 60, (HELPER, 20, 50)), (DISPATCH, 62, 80, (WRAPPER, 63, 79, (VIEW, 64, 78, (HELPER, 65, 77)))))),
    (SERVER, 100, 190, (FLASK, 110, 180, (DISPATCH, 120, 170, (HEALTH, 121, 122), (VIEW, 130, 160)))),
    (SERVER, 200, 210),
)


@pytest.mark.parametrize("cuts", [(), (70,), (15, 65, 79, 85, 121, 150)])
def test_the_outermost_entry_is_the_request_and_the_dispatcher_names_it(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    trace = opened(tmp_path, *WEB, cuts=cuts)
    assert lines(trace) == ["WSGI orders [10, 90] 0 complete", "WSGI orders [100, 190] 0 complete", "WSGI run_wsgi [200, 210] 0 complete"]
    assert trace.sql("select count(*) as n from requests")["n"][0] == 3


def test_without_a_dispatcher_the_longest_function_of_the_program(tmp_path: Path) -> None:
    of_a_library = (SLEEP, 22, 76, (VIEW, 30, 70, (HELPER, 31, 69)))
    assert lines(opened(tmp_path, *nested((SERVER, 10, 90, (HOOK, 11, 12), (FLASK, 20, 80, of_a_library))))) == ["WSGI orders [10, 90] 0 complete"]


def test_a_handler_of_the_standard_library_s_server(tmp_path: Path) -> None:
    functions = [
        (0, "/usr/lib/python3.11/http/server.py", "handle_one_request", "BaseHTTPRequestHandler.handle_one_request", 1, "http.server", 0),
        (1, "/app/shop.py", "do_POST", "Handler.do_POST", 1, "shop", 0),
        (2, "/app/shell.py", "do_quit", "Shell.do_quit", 1, "shell", 0),
    ]
    events: list[Row] = [(ts, 7, 7, kind, func, frame, 1) for ts, kind, func, frame in nested((0, 10, 90, (1, 20, 80), (2, 81, 82)))]
    (row,) = pytrace_ebpf.open(write_trace(tmp_path, events=events, functions=functions)).requests().to_dict("records")
    assert (row["kind"], row["endpoint_func_id"], row["start_ns"], row["end_ns"]) == ("HTTP", 1, 20, 80)


@pytest.mark.parametrize("pattern", ["helper", "shop:helper", "*/shop.py:h?lper", "sh*:help*"])
def test_what_is_asked_for_counts_besides(tmp_path: Path, pattern: str) -> None:
    trace = opened(tmp_path, *WEB)
    asked = ["asked helper [1, 2] 0 complete", "asked helper [20, 50] 0 complete", "asked helper [65, 77] 0 complete"]
    assert [line for line in lines(trace, pattern) if line.startswith("asked")] == asked
    assert next(line for line in lines(trace) if line.startswith("WSGI")) == "WSGI orders [10, 90] 0 complete"


@pytest.mark.parametrize("pattern", ["other:helper", "/shop.py:helper", "Helper", "help"])
def test_what_does_not_fit_whole_is_not_asked_for(tmp_path: Path, pattern: str) -> None:
    assert len(lines(opened(tmp_path, *WEB), pattern)) == 3


ASYNC = (
    (1, E, ASGI, 16), (2, YIELD, ASGI, 16),
    (3, E, ASGI, 32), (4, E, ROUTE, 48), (5, E, ENDPOINT, 64), (6, E, SLEEP, 80), (7, YIELD, SLEEP, 80), (8, YIELD, ENDPOINT, 64), (9, YIELD, ROUTE, 48), (10, YIELD, ASGI, 32),
    (20, RESUME, ASGI, 16), (22, E, ROUTE, 96), (24, E, ENDPOINT, 112), (30, R, ENDPOINT, 112), (32, R, ROUTE, 96), (34, R, ASGI, 16),
    (40, RESUME, ASGI, 32), (41, RESUME, ROUTE, 48), (42, RESUME, ENDPOINT, 64), (43, RESUME, SLEEP, 80), (44, R, SLEEP, 80), (45, R, ENDPOINT, 64),
    (46, R, ROUTE, 48), (50, R, ASGI, 32),
    (60, E, ASGI, 16), (61, R, ASGI, 16),
)  # fmt: skip


@pytest.mark.parametrize("cuts", [(), (15,), (2, 4, 21, 31, 42, 47)])
def test_a_coroutine_is_one_request_with_all_its_resumes(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    trace = opened(tmp_path, *ASYNC, cuts=cuts)
    assert lines(trace) == ["ASGI read [1, 34] 18 complete", "ASGI read [3, 50] 30 complete", "ASGI run_asgi [60, 61] 0 complete"]
    second = trace.requests().iloc[1].to_dict()
    one = one_request(trace, second)
    assert one.tree[["func_id", "parent_id", "calls", "total_ns", "self_ns"]].to_numpy().tolist() == [
        [ASGI, -1, 2, 17, 7], [ROUTE, 0, 2, 10, 4], [ENDPOINT, 1, 2, 6, 4], [SLEEP, 2, 2, 2, 2],
    ]  # fmt: skip
    assert one.awaited == ([ENDPOINT, SLEEP], 36)  # 32 of ROUTE


def test_a_request_whose_loop_was_held_names_who_held_it(tmp_path: Path) -> None:
    """Between its resumes a callback runs own code, in which a helper does most; `hook` runs the loop, and its own endpoint is nobody who holds it up."""
    rows = [
        (0, E, HOOK, 8),
        *ASYNC[:10],
        (11, E, VIEW, 200),
        (11, E, HELPER, 201),
        (18, R, HELPER, 201),
        (19, R, VIEW, 200),
        *ASYNC[10:],
        (90, R, HOOK, 8),
    ]
    trace = opened(tmp_path, *((ts * 1_000_000, kind, func, frame) for ts, kind, func, frame in rows))
    second = trace.requests().iloc[1].to_dict()
    held = one_request(trace, second).held
    # ENDPOINT is that of another request, on the same thread.
    assert [(row.func_id, row.ns // 1_000_000) for row in held.itertuples()] == [(HELPER, 7), (ENDPOINT, 6), (VIEW, 1)]
    _, more = view.found(trace, pd.DataFrame(), {"requests": ["run_asgi"], "slowest": 1})
    said = " ".join(str(line) for line in view._why(more["slowest"][0]))
    assert "Suspended 30.0ms: `helper` (shop.py:21) held the event loop for 7.00ms of that, blocked." in said, said


def test_one_that_began_before_the_recording(tmp_path: Path) -> None:
    rows = ((1, RESUME, ASGI, 16), (2, E, ENDPOINT, 32), (5, R, ENDPOINT, 32), (9, R, ASGI, 16))
    assert lines(opened(tmp_path, *rows)) == ["ASGI read [0, 9] 1 open_at_start"]


def test_why_one_was_slow(tmp_path: Path) -> None:
    act = Script(7, 7).snapshot().enter(SERVER).run(50).enter(VIEW).run(100).wait(7_000, queued=900).run(30).leave().run(20).leave()
    trace = pytrace_ebpf.open(write_trace(tmp_path, events=act.events, sched=act.sched, functions=FUNCTIONS))
    request = trace.requests().iloc[0].to_dict()
    one = one_request(trace, request)
    assert one.tree["func_id"].tolist() == [SERVER, VIEW]
    assert one.tree["total_ns"][0] == request["wall_ns"] == one.tree["self_ns"].sum()
    waited = {row["kind"]: (row["func_id"], row["ns"]) for row in one.waits.to_dict("records")}
    assert waited == {"sleep": (VIEW, request["blocked_ns"]), RUN_QUEUE: (VIEW, request["runq_wait_ns"])}


def test_random_calls_as_a_walk_over_their_rows_finds_them(tmp_path: Path) -> None:
    for seed in range(10):
        chance, rows, stack, now = random.Random(seed), [], [], 0
        for _ in range(200):
            now += 1
            if stack and chance.random() < 0.5:
                rows.append((now, R, *stack.pop()))
            else:
                stack.append((chance.choice((SERVER, FLASK, DISPATCH, HOOK, VIEW, HELPER, WRAPPER)), now))
                rows.append((now, E, *stack[-1]))
        trace = opened(tmp_path / str(seed), *rows, cuts=tuple(sorted(chance.sample(range(1, now), 4))))
        found = {(r.request_id, r.endpoint_func_id) for r in trace.requests().itertuples()}
        assert found == walked(trace.calls()), seed


def walked(calls: pd.DataFrame) -> set[tuple[int, int]]:
    """(request_id, endpoint_func_id), call by call."""
    entries, namers, own = {SERVER, FLASK}, {SERVER, FLASK, DISPATCH}, {HOOK, VIEW, HELPER}
    above = {r.call_id: r for r in calls.itertuples()}
    best: dict[int, tuple[int, int, int, int]] = {}

    def line(call: Any) -> list[Any]:
        return [call, *(line(above[call.parent_id]) if call.parent_id >= 0 else [])]

    for call in calls.itertuples():
        ancestors = line(call)
        requests = [each for each in ancestors if each.func_id in entries]
        if not requests:
            continue
        request = requests[-1]
        best.setdefault(request.call_id, (-1, -1, -1, request.func_id))
        between = [each.func_id for each in ancestors[1:]]
        nearest = next((n for n, func in enumerate(between) if func in namers), None)
        if call.func_id in own and nearest is not None and not own & set(between[:nearest]):
            depth = sum(func in namers for func in between)
            best[request.call_id] = max(best[request.call_id], (depth, call.wall_ns, call.call_id, call.func_id))
    return {(request, func_id) for request, (*_, func_id) in best.items()}


def test_quantiles_are_times_that_requests_had() -> None:
    wall = list(range(1, 101))
    zero = [0] * 100
    requests = pd.DataFrame(
        {"request_id": wall, "kind": "WSGI", "endpoint_func_id": VIEW, "wall_ns": wall, "awaited_ns": zero, "on_cpu_ns": wall}
        | dict.fromkeys(("runq_wait_ns", "gil_wait_ns", "blocked_ns"), zero)
    )  # fmt: skip
    row = by_request(requests).iloc[0]
    assert [row[name] for name in ("requests", "p50_ns", "p95_ns", "p99_ns", "max_ns", "run_ns", "slowest_id")] == [100, 50, 95, 99, 100, 5050, 100]
    assert row["slow_run_ns"] == sum(range(95, 101)) == row["slow_on_cpu_ns"]


def test_a_request_whose_split_is_not_known_hides_none_of_the_others() -> None:
    """Its time is apart. Where only its time off a core cannot be split, the rest of nobody's can be said."""
    parts: dict[str, list[int | None]] = {
        "on_cpu_ns": [3, None, 4],
        "runq_wait_ns": [2, None, 0],
        "gil_wait_ns": [0, None, 0],
        "blocked_ns": [5, None, 6],
    }
    requests = pd.DataFrame({"request_id": [1, 2, 3], "kind": "WSGI", "endpoint_func_id": VIEW, "wall_ns": [10, 7, 10], "awaited_ns": 0} | parts)
    row = by_request(requests.astype(dict.fromkeys(parts, "Int64"))).iloc[0]
    assert [row[name] for name in (*parts, "unknown_ns", "run_ns")] == [7, 2, 0, 11, 7, 27]
    requests.loc[2, list(parts)[1:]] = None
    row = by_request(requests.astype(dict.fromkeys(parts, "Int64"))).iloc[0]
    assert row["on_cpu_ns"] == 7 and row[list(parts)[1:]].isna().all()


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_no_line_is_wider_than_asked(tmp_path: Path, width: int) -> None:
    trace, facts = (
        opened(tmp_path, *WEB, *((ts + 300, *rest) for ts, *rest in ASYNC)),
        {"requests": [], "slowest": 9, "scheduling": {"source": "bpf"}},
    )
    table, more = view.found(trace, pd.DataFrame(), facts)
    console = Console(width=width, record=True, file=(tmp_path / "out").open("w"))
    for line in view.report(facts | more, table, width, False, 20):
        console.print(line)
    shown = console.export_text()
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    assert len(more["slowest"]) == len(trace.requests()) == 6
    assert "orders" in shown and "Api.read" in shown


def test_every_kind_is_one_word_of_a_pattern_that_can_fit() -> None:
    for point in entry_points.ENTRY_POINTS:
        module, qualname = point.module.replace("*", "x"), point.qualname.replace("[A-Z]", "X").replace("*", "x")
        row = pd.DataFrame([(0, f"/x/{module}.py", qualname, module, "python")], columns=["func_id", "file", "qualname", "module", "function_layer"])
        assert entry_points.kinds(row, point.handlers_only).tolist() == [point.kind]
