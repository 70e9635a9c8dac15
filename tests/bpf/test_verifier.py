"""The kernel gives up on a program at a million instructions that it has followed; another kernel follows more of the same one."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytrace_ebpf.record.kernel import system_calls
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.native import tensors
from pytrace_ebpf.record.process.target import inspect
from pytrace_ebpf.record.sampling.samples import Samples
from pytrace_ebpf.record.scheduling.sched import SchedProbes
from pytrace_ebpf.record.usdt.probes import UsdtProbes, plan
from tests.conftest import Target

MOST = 700_000
_SHARED = SimpleNamespace(shares=None, functions=None)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch, record_property: Any) -> Iterator[dict[str, int]]:
    """Each program that is loaded -> so many; they stand in the JUnit file, too."""
    counts: dict[str, int] = {}
    load = system_calls.load_program

    def counted(name: str, *how: Any) -> int:
        program = load(name, *how)
        counts[name] = max(counts.get(name, 0), system_calls.verified(program))
        return program

    monkeypatch.setattr(system_calls, "load_program", counted)
    yield counts
    for name, count in counts.items():
        record_property(f"verified {name}", count)
    assert counts and min(counts.values()) > 0
    assert max(counts.values()) < MOST, counts


@pytest.mark.bpf
def test_of_scheduling(verified: dict[str, int]) -> None:
    SchedProbes(64, follow=True).close()
    assert "tracepoint_sched_switch" in verified


@pytest.mark.bpf
def test_of_samples(verified: dict[str, int]) -> None:
    samples = Samples(_SHARED, 99, follow=True, states=True)  # type: ignore[arg-type]
    samples.close()
    assert not samples.missing()
    assert verified.keys() >= {"sample", "step", "natives", "finish", "back", "step_back", "natives_back", "finish_back"}


@pytest.mark.bpf
@pytest.mark.parametrize("args", [(), ("*.f*",)], ids=["calls", "args"])
def test_of_probes(args: tuple[str, ...], target: Callable[..., Target], verified: dict[str, int]) -> None:
    traced = inspect(target("sleeper", "--wait").pid)
    assert traced.layout is not None
    planned = plan(traced.binary, traced.layout)
    probes = UsdtProbes(planned, 64, args=args)
    for point in planned.points:
        probes._uprobes.load(point.program)
    probes.close()
    assert {"function_entry", "function_return"} <= verified.keys() and ("arguments_step" in verified) == bool(args)


@pytest.mark.bpf
@pytest.mark.parametrize(
    ("source", "settings", "sizes"),
    [
        ("native.c", {"tensor_sizes": tensors.SIZES_OFFSET}, {"calls": 1 << 20, "arguments": 1 << 20, "errors": 1 << 20, "natives": 64}),
        ("blocks.c", {"every": 1 << 19, "changes_room": 1 << 20, "most_blocks": 64}, {"changes": 1 << 20, "blocks": 64}),
    ],
)
def test_of_libraries(source: str, settings: dict[str, int], sizes: dict[str, int], verified: dict[str, int]) -> None:
    programs = Programs(source, settings, sizes)
    for name in programs._compiled.programs:
        programs.program(name)
    programs.close()
    assert len(verified) >= 4
