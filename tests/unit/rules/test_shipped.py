"""Each file of rules that comes with it, with a program that breaks it and one that only looks so."""

from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.rules.check import VIOLATED, check
from pytrace_ebpf.rules.file import read, shipped
from tests.unit.synthetic import FUTEX, Row, Script, write_trace

MS = 1_000_000
READ = 0
_COROUTINE = 0x80
FUNCTIONS: dict[str, Row] = {
    name: (number, file, name.rpartition(".")[2], name, 10 * number + 1, module, *more)
    for number, (name, file, module, *more) in enumerate(
        [
            ("<module>", "/srv/app.py", "app"),
            ("handler", "/srv/app.py", "app", _COROUTINE),
            ("Handle._run", "/usr/lib/python3.11/asyncio/events.py", "asyncio.events"),
            ("time.sleep", "", "<c>", 0, "c"),
            ("Session.request", "/usr/lib/python3/dist-packages/requests/sessions.py", "requests.sessions"),
            ("run", "/usr/lib/python3.11/subprocess.py", "subprocess"),
            ("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py", "asyncio.base_events"),
            ("worker", "/srv/app.py", "app"),
            ("WSGIHandler.__call__", "/usr/lib/python3/dist-packages/django/core/handlers/wsgi.py", "django.core.handlers.wsgi"),
            ("CursorWrapper.execute", "/usr/lib/python3/dist-packages/django/db/backends/utils.py", "django.db.backends.utils"),
            ("ForwardManyToOneDescriptor.get_object", "/usr/lib/python3/dist-packages/django/db/models/fields/related_descriptors.py",
             "django.db.models.fields.related_descriptors"),
            ("Template.render", "/usr/lib/python3/dist-packages/django/template/base.py", "django.template.base"),
            ("Flask.wsgi_app", "/usr/lib/python3/dist-packages/flask/app.py", "flask.app"),
            ("Connection._execute_context", "/usr/lib/python3/dist-packages/sqlalchemy/engine/base.py", "sqlalchemy.engine.base"),
            ("LazyLoader._emit_lazyload", "/usr/lib/python3/dist-packages/sqlalchemy/orm/strategies.py", "sqlalchemy.orm.strategies"),
            ("Module._wrapped_call_impl", "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", "torch.nn.modules.module"),
            ("aten::item", "", "<operator>", 0, "operator"),
            ("_BaseDataLoaderIter.__next__", "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py", "torch.utils.data.dataloader"),
        ]
    )
}  # fmt: skip


class Told(Script):
    """A thread whose functions are called by name."""

    def call(self, name: str, does: Callable[["Told"], object] = lambda told: told.run(1000)) -> "Told":
        self.enter(FUNCTIONS[name][0])
        does(self)
        self.leave()
        return self


def loop_held(main: Told) -> None:
    main.call("Handle._run", lambda m: m.call("handler", lambda m: m.call("time.sleep", lambda m: m.wait(50 * MS))))
    main.call("Handle._run", lambda m: m.call("handler", lambda m: m.call("Session.request").call("run")))
    main.call("Handle._run", lambda m: m.run(120 * MS))


def loop_free(main: Told) -> None:
    """The loop itself waits for what comes, and a thread of a pool sleeps and asks."""
    main.call("BaseEventLoop._run_once", lambda m: m.wait(500 * MS, syscall=232).call("Handle._run", lambda m: m.call("handler")))
    main.call("worker", lambda m: m.call("time.sleep", lambda m: m.wait(50 * MS)).call("Session.request").call("run"))


def times(name: str, count: int) -> Callable[[Told], None]:
    def does(told: Told) -> None:
        for _ in range(count):
            told.call(name)

    return does


def django_by_row(main: Told) -> None:
    main.call("WSGIHandler.__call__", lambda m: (times("CursorWrapper.execute", 31)(m), times("ForwardManyToOneDescriptor.get_object", 11)(m)))
    main.call("WSGIHandler.__call__", lambda m: m.call("Template.render", times("CursorWrapper.execute", 1)))


def django_by_page(main: Told) -> None:
    """As many queries, of several requests and of none."""
    for _ in range(5):
        main.call("WSGIHandler.__call__", lambda m: (times("CursorWrapper.execute", 25)(m), m.call("Template.render")))
    times("CursorWrapper.execute", 50)(main)


def sqlalchemy_by_row(main: Told) -> None:
    main.call("Flask.wsgi_app", lambda m: (times("Connection._execute_context", 31)(m), times("LazyLoader._emit_lazyload", 11)(m)))


def sqlalchemy_by_page(main: Told) -> None:
    for _ in range(5):
        main.call("Flask.wsgi_app", lambda m: (times("Connection._execute_context", 30)(m), times("LazyLoader._emit_lazyload", 10)(m)))


def torch_reads(main: Told) -> None:
    main.call("_BaseDataLoaderIter.__next__", lambda m: m.run(200 * MS))
    main.call("Module._wrapped_call_impl", lambda m: m.call("Module._wrapped_call_impl", lambda m: m.call("aten::item")))


def torch_reads_behind(main: Told) -> None:
    """The loss is read once the step is done."""
    main.call("_BaseDataLoaderIter.__next__").call("Module._wrapped_call_impl").call("aten::item")


def threads_of(held: bool) -> list[Told]:
    """One thread reads for 20 ms while another one waits for its lock; or it lets go of the lock first."""
    one, other = Told(7, 7).snapshot(), Told(7, 8, cpu=1).snapshot()
    one.enter(0), other.enter(0)
    read_ms, waits_ms = (20, 25) if held else (0, 5)
    other.run(MS).call("worker", lambda m: m.wait(waits_ms * MS, syscall=FUTEX, address=0x9000, waker=7))
    one.call("worker", lambda m: m.run(3 * MS).wait(read_ms * MS, syscall=READ) if read_ms else m.run(6 * MS)).run(3 * MS)
    one.call("worker", lambda m: m.run(0) if held else m.wait(20 * MS, syscall=READ))
    one.leave(), other.leave()
    return [one, other]


def alone(does: Callable[[Told], None]) -> list[Told]:
    main = Told(7, 7).snapshot()
    main.enter(0)
    does(main)
    main.leave()
    return [main]


CASES = {
    "asyncio": (alone(loop_held), alone(loop_free), {"loop-waits", "loop-sleeps", "loop-asks", "loop-runs", "loop-held"}),
    "django": (alone(django_by_row), alone(django_by_page), {"n-plus-one", "related-one-by-one", "query-in-a-template"}),
    "sqlalchemy": (alone(sqlalchemy_by_row), alone(sqlalchemy_by_page), {"n-plus-one", "lazy-in-a-loop"}),
    "pytorch": (alone(torch_reads), alone(torch_reads_behind), {"number-in-forward", "slow-loader"}),
    "threads": (threads_of(held=True), threads_of(held=False), {"io-under-a-lock"}),
}


@pytest.mark.parametrize("name", shipped())
def test_what_breaks_the_rules_does_and_what_looks_so_does_not(tmp_path: Path, name: str) -> None:
    breaks, looks_so, violated = CASES[name]
    for scripts, expected in ((breaks, violated), (looks_so, set())):
        trace = write_trace(
            tmp_path / str(len(expected)), events=[row for script in scripts for row in script.events], functions=list(FUNCTIONS.values()),
            sched=sorted((row for script in scripts for row in script.sched), key=lambda row: row[0]),
            manifest={"argv": ["pytrace-ebpf", "run"], "scheduling": {"source": "bpf", "why": ""}},
        )  # fmt: skip
        verdicts = check(pytrace_ebpf.open(trace), read(name)).verdicts
        assert {verdict.rule.name for verdict in verdicts if verdict.state == VIOLATED} == expected
