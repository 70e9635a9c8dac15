"""Pythons without a GIL: every call of threads that run at once, attached and launched, and no wait for a GIL unless the program turns it on."""

from collections.abc import Callable

import pytest

import pytrace_ebpf
from pytrace_ebpf.derive.sinks.cores import core_sums
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view import cores
from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target, free_threaded_pythons
from tests.waits_add_up import assert_waits_add_up

if not free_threaded_pythons():
    pytest.skip("no Python without a GIL is here: scripts/roots.sh builds some", allow_module_level=True)
PYTHON = free_threaded_pythons()[-1]
each = pytest.mark.parametrize("build", free_threaded_pythons(), ids=str)


def counts(trace: Trace, program: str) -> dict[str, int]:
    calls = trace.calls(columns=["func_id", "status", "depth"]).merge(trace.functions(), on="func_id")
    own = calls[(calls["status"] != "open_at_start") & (calls["file"].str.endswith(f"{program}.py") | calls["file"].str.startswith("<made"))]
    found = own.groupby("name").size().to_dict()
    found.pop("<module>", None)
    return found


def waited_for_gil(trace: Trace) -> int:
    return int(trace.calls(columns=["depth", "gil_wait_ns"]).query("depth == 0")["gil_wait_ns"].sum())


@each
def test_threads_that_run_at_once(build: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("no_gil", "4", "4000", "--wait", python=build)
    recorder = attach(process.pid)
    process.go()
    said = process.done()
    trace = pytrace_ebpf.open(recorder.finish())

    assert not said["gil"]
    assert counts(trace, "no_gil") == said["calls"]
    assert waited_for_gil(trace) == 0
    assert assert_waits_add_up(trace) > 0


@each
def test_what_takes_the_gils_place(build: Python, run: Callable[..., tuple]) -> None:
    directory, ended = run(build.command("stops"))
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    assert_waits_add_up(trace)
    waits, names = trace.waits().astype({"kind": object}), trace.functions().set_index("func_id")["name"]

    stopped = waits[(waits["kind"] == "stop-the-world") & (waits["func_id"].map(names) == "compute")]
    assert len(stopped) > 0 and stopped["lock_address"].isna().all()
    assert "gc generation 2" in set(stopped["waker_func_id"].map(names))
    shared = waits[(waits["kind"] == "object-lock") & (waits["func_id"].map(names) == "append")]
    assert len(shared) > 0 and len(set(shared["lock_address"])) == 1
    assert "sort" in set(shared["waker_func_id"].map(names))

    off = {row["kind"]: row for row in cores.facts(trace, core_sums(trace))["kept_off"]}
    assert off["stop-the-world"]["threads"] > 0 and off["object-lock"]["qualname"] == "append"


@pytest.mark.parametrize("gil", [0, 1])
def test_waits_for_a_gil_that_is_turned_on(gil: int, run: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_GIL", str(gil))
    directory, ended = run(PYTHON.command("gil_fight", "0.6", "2"))
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    assert counts(trace, "gil_fight")["compute"] == 2 * 50
    assert (waited_for_gil(trace) > 0) == bool(gil)
    assert "gil" in set(trace.waits()["kind"]) or not gil


@pytest.mark.parametrize(("words", "said"), [(["--args", "*"], "Without a GIL --args"), (["--budget", "5%"], "leave out --budget")])
def test_what_needs_a_gil_is_refused(words: list[str], said: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("no_gil", "1", "10", "--wait", python=PYTHON)
    with pytest.raises(AssertionError, match=said):
        attach(process.pid, *words)
    process.go()
    assert process.done()["calls"]["work"] == 1
