"""Samples by asyncio's running task, of a program whose tasks measure their own time."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.by_task import NONE, by_task, tasks_of
from pytrace_ebpf.analyze.samples.paths import segments
from tests.bpf.conftest import Recorder
from tests.bpf.test_samples import HZ, assert_shares, stacks_of
from tests.conftest import Python, Target

pytestmark = pytest.mark.gil

AUTOMATIC = re.compile(r"Task-\d+")
LONGEST = 48  # characters of two bytes that are read
LONGEST_TASK = 6 * 96 + 3  # 96 bytes, each as an escape, and dots
MOST_NAMELESS = 0.2


@pytest.mark.sources("agent")
@pytest.mark.measured
def test_tasks_have_their_shares(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("aio_shares", "--wait", python=python)
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    said = process.done()
    spent: dict[str, Any] = said["spent"]
    trace = pytrace_ebpf.open(recorder.finish())
    functions = trace.functions().set_index("func_id")
    flags, names = functions["flags"].to_dict(), functions["name"].to_dict() | {NONE: "called"}
    counts, named, frames = Counter[str](), Counter[tuple[str, str | None]](), stacks_of(trace)
    for samples, stacks in segments(trace, native=False):
        tasks = tasks_of(stacks, flags)
        on_core = samples[samples["off_ns"] == 0]
        task = on_core["task"].astype(object).where(on_core["task"].notna(), None)
        working = [(stack, name) for stack, name in zip(on_core["stack_id"], task, strict=True) if "work" in dict(frames.get(stack, []))]
        counts.update(names[tasks[stack]] for stack, _ in working)
        named.update((names[tasks[stack]], name) for stack, name in working)
    assert set(counts) == set(spent), (counts, spent)
    assert_shares(counts, spent, counts.total())
    assert_names(named, said["names"])
    table = by_task(trace, trace.manifest["sampling"]["period_ns"], counts.total())
    assert {names[task] for task in table["func_id"] if task != NONE} - {"everything"} == set(spent) - {"called"}
    assert table["total_samples"].sum() == len(trace.samples())


def assert_names(named: Counter[tuple[str, str | None]], expected: dict[str, str]) -> None:
    """Each sample has its task's name or, seldom, none: before asyncio was seen there, or while the task was being begun or left."""
    for (kind, name), _ in named.items():
        if kind == "called":
            assert name is None
        elif kind == "eager":
            assert name is None or AUTOMATIC.fullmatch(name)
        elif len(expected[kind]) > LONGEST:
            assert name is None or (name.endswith("...") and expected[kind].startswith(name[:-3]))
        else:
            assert name in (None, expected[kind]), named
    assert {kind for kind, name in named if name} == {kind for kind, _ in named if kind != "called"}
    nameless = sum(count for (kind, name), count in named.items() if name is None and kind != "called")
    assert nameless <= MOST_NAMELESS * named.total(), named


def test_names_that_cannot_be_are_none_or_what_is_there(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("forged_task", "--wait")
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    said = process.done()
    assert said["name"] == "x" * 30
    trace = pytrace_ebpf.open(recorder.finish())
    names = set(trace.samples()["task"].dropna().astype(str))
    assert said["name"] in names
    assert all(len(name) <= LONGEST_TASK for name in names)
    assert any(name.startswith(said["name"]) and name.endswith("...") for name in names)  # its length said more
