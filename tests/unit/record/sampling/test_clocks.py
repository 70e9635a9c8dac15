"""Where the kernel runs what samples threads that come back to a core: a tracepoint, or a function, whatever a compiler called it."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel.system_calls import KPROBE, RAW_TRACEPOINT
from pytrace_ebpf.record.sampling import clocks
from pytrace_ebpf.record.sampling.clocks import Returns

SYMBOLS = "ffffffff81000000 t finish_task_switch.part.3\nffffffff81000010 t finish_task\nffffffff81000020 t other [module]\n"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """One of which a test says what it has."""
    there = SimpleNamespace(tracepoints=set(), functions=set(), opened=[], loaded=[])
    there.has_tracepoint = lambda name: name in there.tracepoints
    (tmp_path / "kallsyms").write_text(SYMBOLS)

    def open_kprobe(program: int, function: str) -> int:
        if function not in there.functions:
            raise OSError(errno.ENOENT, "No such file or directory")
        there.opened.append(function)
        return -1

    def open_raw_tracepoint(name: str, program: int) -> int:
        there.opened.append(name)
        return -1

    monkeypatch.setattr(clocks, "_SYMBOLS", tmp_path / "kallsyms")
    monkeypatch.setattr(clocks, "open_kprobe", open_kprobe)
    monkeypatch.setattr(clocks, "open_raw_tracepoint", open_raw_tracepoint)
    return there


@pytest.mark.parametrize("name", ["finish_task_switch", "finish_task_switch.isra.0", "finish_task_switch.part.3"])
def test_without_the_tracepoint_there_is_a_function(name: str, kernel: SimpleNamespace) -> None:
    kernel.functions = {name}
    returns = Returns(lambda kind: kernel.loaded.append(kind) or 5, kernel)
    assert not returns.why_not and kernel.opened == [name]
    assert kernel.loaded == [KPROBE], "programs of an array have one type, so that no other one may be loaded before"


def test_the_tracepoint_is_taken(kernel: SimpleNamespace) -> None:
    kernel.tracepoints, kernel.functions = {"sched_exit_tp"}, {"finish_task_switch"}
    returns = Returns(lambda kind: kernel.loaded.append(kind) or 5, kernel)
    assert not returns.why_not and kernel.opened == ["sched_exit_tp"] and kernel.loaded == [RAW_TRACEPOINT]


def test_what_the_kernel_has_not_or_refuses_is_said(kernel: SimpleNamespace) -> None:
    assert Returns(lambda kind: 5, kernel).why_not.startswith("stacks off the core are not sampled: ")

    def load(kind: int) -> int:
        raise HostError("the kernel refuses back (a jump too many)")

    kernel.tracepoints = {"sched_exit_tp"}
    assert "a jump too many" in Returns(load, kernel).why_not
