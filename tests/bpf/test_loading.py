"""What this loader makes of compiled programs: maps that hold what was put in them, and scheduling read in either way."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.cpython import parking
from pytrace_ebpf.record.kernel import system_calls
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.map import Map, possible_cpus
from pytrace_ebpf.record.scheduling import sched
from pytrace_ebpf.record.scheduling.sched import SchedProbes
from pytrace_ebpf.trace.schema import SchedKind

HASH, ARRAY, PER_CPU_ARRAY = 1, 2, 6
NANOSLEEP = processors.here().call("clock_nanosleep")


@pytest.fixture
def made() -> Iterator[Callable[..., Map]]:
    """Makes maps: (kind, dtype of the values, elements)."""
    descriptors: list[int] = []

    def make(kind: int, value: Any, entries: int) -> Map:
        value = np.dtype(value)
        descriptors.append(system_calls.create_map("made", kind, 4, value.itemsize, entries, 0))
        return Map(descriptors[-1], kind, np.dtype("<u4"), value)

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_hash_of_structs(made: Callable[..., Map]) -> None:
    table = made(HASH, [("a", "<u8"), ("b", "<i4"), ("c", "<u4", 1)], 3)
    assert table.get(1) is None and list(table.items()) == []
    for key in (1, 2, 3):
        table.set(key, (key << 40, -key, [key]))
    assert {int(key): (int(value["a"]), int(value["b"])) for key, value in table.items()} == {key: (key << 40, -key) for key in (1, 2, 3)}
    table.delete(2)
    table.delete(2)
    assert table.get(2) is None and table.get(3)["c"] == 3
    table.set(4, (0, 0, [0]))
    with pytest.raises(OSError, match="Argument list too long"):  # E2BIG: it is full
        table.set(5, (0, 0, [0]))


def test_a_value_for_each_core(made: Callable[..., Map]) -> None:
    table = made(PER_CPU_ARRAY, "<u4", 2)  # the kernel keeps eight bytes of each
    assert table.get(1).shape == (len(possible_cpus()),) and not table.get(1).any()


def test_all_settings_are_required() -> None:
    with pytest.raises(KeyError):
        Programs("sched.c", dict(parking.SETTINGS))


@pytest.mark.parametrize("given", [True, False])
def test_the_state_of_a_sleeping_thread_is_read(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    load = sched.Programs

    def as_on_another_kernel(source: str, settings: dict[str, object], *more: Any) -> Programs:
        if settings["state_given"] and not given:
            raise HostError("sched_switch has no fourth argument")
        return load(source, settings, *more)

    monkeypatch.setattr(sched, "Programs", as_on_another_kernel)
    probes = SchedProbes(64, follow=True)
    try:
        getattr(probes, "add", getattr(probes, "start", None))(os.getpid())
        sleeper = threading.Thread(target=time.sleep, args=(0.05,))
        sleeper.start()
        tid = sleeper.native_id
        sleeper.join()
        rows = probes.drain()["sched"]
    finally:
        probes.close()
    columns = rows[0] if isinstance(rows, list) else rows
    of_sleeper = columns["tid"] == tid
    slept = of_sleeper & (columns["kind"] == SchedKind.OUT) & (columns["syscall"] == NANOSLEEP)
    assert columns["state"][slept].tolist() == [1]
    assert (columns["kind"][of_sleeper] == SchedKind.WAKING).sum() >= 2  # when it was made, and at the end of its sleep
    assert set(columns["cpu"][of_sleeper]) <= set(possible_cpus())
