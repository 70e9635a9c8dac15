"""Asking for native layers: what options mean, what a kernel must have, and what one function that cannot be probed costs the others."""

import argparse
import errno
import os
from collections.abc import Callable, Sequence

import pytest

from pytrace_ebpf.cli import run as run_command
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.options import recording
from pytrace_ebpf.record import doctor
from pytrace_ebpf.record.kernel import abilities, uprobe_multi
from pytrace_ebpf.record.kernel.uprobe_multi import Uprobe
from pytrace_ebpf.record.native import layers
from pytrace_ebpf.record.native.layers import NativeLayers

UPROBES = [Uprobe(16 * at, at) for at in range(100)]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """`kernel(refused, error)`: attach() as a kernel does that refuses these cookies; the returned list gets what it attached."""

    def refuse(refused: set[int], error: int) -> list[list[int]]:
        attached: list[list[int]] = []

        def attach(program: int, path: str, uprobes: Sequence[Uprobe], pid: int, at_return: bool = False) -> int:
            if refused & {uprobe.cookie for uprobe in uprobes}:
                raise OSError(error, os.strerror(error))
            attached.append([uprobe.cookie for uprobe in uprobes])
            return os.open("/dev/null", os.O_RDONLY)

        monkeypatch.setattr(uprobe_multi, "attach", attach)
        return attached

    return refuse


@pytest.mark.parametrize("refused", [set(), {0}, {99}, {17, 18, 64}, set(range(100))])
def test_a_refused_function_does_not_affect_the_others(kernel: Callable[..., list[list[int]]], refused: set[int]) -> None:
    attached = kernel(refused, 524)
    links, left = uprobe_multi.attach_all(3, "lib", UPROBES, 1)
    for link in links:
        os.close(link)
    assert left == refused
    assert len(links) == len(attached)
    assert sorted(cookie for part in attached for cookie in part) == sorted(set(range(100)) - refused)


def test_a_process_that_is_gone_is_asked_once(kernel: Callable[..., list[list[int]]]) -> None:
    attached = kernel({5}, errno.ESRCH)
    with pytest.raises(ProcessLookupError):
        uprobe_multi.attach_all(3, "lib", UPROBES, 1)
    assert attached == []


def test_no_link_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def attach(program: int, path: str, uprobes: Sequence[Uprobe], pid: int, at_return: bool = False) -> int:
        if len(uprobes) > 50:
            raise OSError(errno.EINVAL, "")
        if opened:
            raise OSError(errno.ENOMEM, "")
        opened.append(os.open("/dev/null", os.O_RDONLY))
        return opened[0]

    monkeypatch.setattr(uprobe_multi, "attach", attach)
    with pytest.raises(OSError, match="12"):
        uprobe_multi.attach_all(3, "lib", UPROBES, 1)
    with pytest.raises(OSError):
        os.fstat(opened[0])


@pytest.mark.parametrize(
    ("answers", "fine"),
    [
        ((errno.EBADF, errno.EINVAL), True),
        ((errno.EINVAL, errno.EINVAL), False),  # before 6.6
        ((errno.EBADF, errno.EBADF), False),  # sees one thread only
    ],
)
def test_what_the_kernel_must_have(monkeypatch: pytest.MonkeyPatch, answers: tuple[int, int], fine: bool) -> None:
    given = iter(answers)

    def attach(*_: object) -> int:
        raise OSError(next(given), "")

    monkeypatch.setattr(uprobe_multi, "attach", attach)
    assert uprobe_multi.sees_processes(3) == fine


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run_command.add_arguments(parser)
    return parser.parse_args([*words, "--", "true"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ()),
        (("--layers", "torch, cuda,torch"), ("operator", "cuda")),
        (("--operators", "conv*"), ("operator",)),
        (("--layers", "blas", "--operators", "conv*"), ("blas", "operator")),
    ],
)
def test_layers_that_are_asked_for(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert (recording.options(parse(*words)).value_of("layers") or ()) == expected


@pytest.mark.parametrize("words", [("--layers", "blas"), ("--operators", "conv*")])
def test_not_without_privileges(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"^{words[0]} cannot go with --rootless"):
        run_command.run(parse("--rootless", *words))


def test_an_unknown_layer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--layers", "numpy")
    assert "numpy is not a layer; there are torch, blas, cuda" in capsys.readouterr().err


@pytest.mark.parametrize(("serves", "ok", "said"), [(True, "ok", "in one step, as a try"), (False, "warning", "one by one, as a try")])
def test_the_doctor_tries_how_probes_of_libraries_are_placed(monkeypatch: pytest.MonkeyPatch, serves: bool, ok: str, said: str) -> None:
    monkeypatch.setattr(uprobe_multi, "serves", lambda: serves)
    (finding,) = (finding for finding in doctor.findings() if finding.subject == "native layers")
    assert finding.ok == ok and said in finding.sentence


def test_the_doctor_says_nothing_where_it_may_not_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abilities, "may_try", lambda: False)
    assert {finding.subject for finding in doctor.findings()}.isdisjoint({"native layers", "off the core"})


def test_the_doctor_says_which_layers_a_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        return next(finding.sentence for finding in doctor.findings(os.getpid()) if finding.subject == "native")

    monkeypatch.setattr(doctor, "mapped_libraries", lambda pid: {"/v/libtorch_cpu.so", "/usr/lib/libc.so.6", "/v/libcudart.so.12"})
    assert said() == "--layers torch,blas,cuda can record calls of the libraries it has loaded (libcudart.so.12, libtorch_cpu.so)"
    monkeypatch.setattr(doctor, "mapped_libraries", lambda pid: {"/usr/lib/libc.so.6"})
    assert said() == "it has loaded no library that --layers can record"


def test_looking_takes_no_more_than_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    looks: list[float] = []

    def mapped(pid: int) -> set[str]:
        nonlocal now
        looks.append(now)
        now += 0.002
        return set()

    monkeypatch.setattr(layers, "mapped_libraries", mapped)
    monkeypatch.setattr(layers.time, "monotonic", lambda: now)
    native = NativeLayers.__new__(NativeLayers)
    native._processes, native._next_look, native._keys = {}, 0.0, {}
    while now < 10:
        native.look(range(50))
        now += 0.01
    spent = 0.002 * len(looks)
    assert spent <= 10 / 20 + 50 * 0.002
    assert len(looks) >= 50 * 4  # and each of them is looked at, again and again
    before = len(looks)
    native.look([*range(50), 999])
    assert len(looks) == before + 1  # one that is new at once
