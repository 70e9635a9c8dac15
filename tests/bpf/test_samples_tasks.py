"""Samples by asyncio's running task, of a program whose tasks measure their own time."""

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


@pytest.mark.sources("agent")
@pytest.mark.measured
def test_tasks_have_their_shares(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("aio_shares", "--wait", python=python)
    recorder = attach(process.pid, "--sample", str(HZ))
    process.go()
    spent: dict[str, Any] = process.done()["spent"]
    trace = pytrace_ebpf.open(recorder.finish())
    functions = trace.functions().set_index("func_id")
    flags, names = functions["flags"].to_dict(), functions["name"].to_dict() | {NONE: "called"}
    counts, frames = Counter[str](), stacks_of(trace)
    for samples, stacks in segments(trace, native=False):
        tasks = tasks_of(stacks, flags)
        working = [stack for stack in samples.loc[samples["off_ns"] == 0, "stack_id"] if "work" in dict(frames.get(stack, []))]
        counts.update(names[tasks[stack]] for stack in working)
    assert set(counts) == set(spent), (counts, spent)
    assert_shares(counts, spent, counts.total())
    table = by_task(trace, trace.manifest["sampling"]["period_ns"], counts.total()).set_index("func_id")
    assert {names[task] for task in table.index if task != NONE} - {"everything"} == set(spent) - {"called"}
    assert table["total_samples"].sum() == len(trace.samples())
