"""Kernels that lack something, of this one with that taken away: what is lacking is said from a try, and the rest works."""

import ctypes
import errno
import os
import platform
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import doctor
from pytrace_ebpf.record.kernel import host, system_calls, uprobe_multi
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.btf import KernelTypes
from pytrace_ebpf.record.kernel.library_probes import LibraryProbes
from pytrace_ebpf.record.native import tensors
from pytrace_ebpf.record.sampling import clocks
from pytrace_ebpf.record.sampling.samples import Samples
from pytrace_ebpf.record.scheduling.sched import SchedProbes
from pytrace_ebpf.trace.schema import SchedKind
from tests.bpf.conftest import wait_until
from tests.conftest import Target

_MAP_CREATE, _PROG_LOAD, _LINK_CREATE = 0, 5, 28
_SOFTWARE, _CALL = 1, 0x85


@dataclass(frozen=True)
class Lacking:
    """What a kernel does not know: kinds of maps, helpers, kinds of links, tracepoints; fields; types of perf events; kprobes; anything."""

    maps: tuple[int, ...] = ()
    helpers: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    tracepoints: tuple[str, ...] = ()
    events: tuple[int, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()  # of the type information: struct and field
    kprobes: bool = False
    all: bool = False

    def refuses(self, command: int, attributes: bytes) -> bool:
        """bpf(2)."""
        if command == _MAP_CREATE:
            return struct.unpack_from("<I", attributes)[0] in self.maps
        if command == _PROG_LOAD:
            _, count, code = struct.unpack_from("<IIQ", attributes)
            calls = struct.iter_unpack("<BBhi", ctypes.string_at(code, 8 * count))
            return any(opcode == _CALL and not registers >> 4 and helper in self.helpers for opcode, registers, _, helper in calls)
        return command == _LINK_CREATE and struct.unpack_from("<I", attributes, 8)[0] in self.links


@dataclass(frozen=True)
class Case:
    """What is taken away, whose finding says so, with these words, and what works all the same."""

    lacking: Lacking
    subject: str
    said: str
    needed: bool = False


CASES = {
    "eBPF": Case(Lacking(all=True), "eBPF", "nobody may use eBPF here", needed=True),
    "ring buffers": Case(Lacking(maps=(27,)), "rings", "no BPF ring buffers", needed=True),
    "task_pt_regs": Case(Lacking(helpers=(175,)), "registers", "cannot see the system call", needed=True),
    "get_current_task_btf": Case(Lacking(helpers=(158,)), "registers", "cannot see the system call", needed=True),
    "get_attach_cookie": Case(Lacking(helpers=(174,)), "cookies", "no --layers and no --native-memory"),
    "the clock of a core": Case(Lacking(events=(_SOFTWARE,)), "clocks", "no --sample, no daemon and no top"),
    "uprobe_multi": Case(Lacking(links=(48, 57)), "native layers", "one by one"),
    "a place where threads come back": Case(
        Lacking(tracepoints=("sched_exit_tp",), kprobes=True), "off the core", "stacks off the core are not sampled"
    ),
    "switches": Case(Lacking(tracepoints=("sched_switch",)), "switches", "no tracepoint sched_switch", needed=True),
    "wake-ups": Case(Lacking(tracepoints=("sched_waking",)), "wake-ups", "neither who ended it nor its time in the run queue"),
    "migrations": Case(Lacking(tracepoints=("sched_migrate_task",)), "migrations", "such moves are not counted"),
    "interrupts": Case(Lacking(tracepoints=("softirq_entry", "softirq_exit")), "interrupts", "when a core is in an interrupt"),
    "who is ended for memory": Case(Lacking(tracepoints=("mark_victim",)), "memory", "a kill by anybody"),
    "a thread's state": Case(
        Lacking(fields=(("task_struct", "__state"), ("task_struct", "state"))), "fields", "has no __state or state", needed=True
    ),
    "how a process ends": Case(Lacking(fields=(("signal_struct", "group_exit_code"),)), "ends", "lacks how a process ends"),
    "ids in a container": Case(Lacking(fields=(("pid", "numbers"),)), "ids", "a thread's number in its container"),
    "what is behind descriptors": Case(Lacking(fields=(("files_struct", "fdt"),)), "resources", "which files and sockets were waited for"),
    "where quotas are counted": Case(Lacking(fields=(("task_group", "cfs_rq"),)), "quota", "waits for a CPU quota are not told apart"),
    "when a thread began": Case(Lacking(fields=(("task_struct", "start_time"),)), "sample fields", "no --sample, no daemon and no top"),
    "time in the run queue": Case(Lacking(fields=(("sched_info", "run_delay"),)), "run delay", "how long threads wait for a core"),
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lacking], None]:
    """`without(lacking)`: from now on the kernel lacks that."""

    def take(lacking: Lacking) -> None:
        bpf, event, has, raw = system_calls.bpf, system_calls._open_event, KernelTypes.has_tracepoint, system_calls.open_raw_tracepoint
        members, tracepoints = KernelTypes.offset, (*lacking.tracepoints,)

        def less_tracepoints(name: str, program: int) -> int:
            if name in tracepoints:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return raw(name, program)

        def less_fields(self: KernelTypes, struct_name: str, *fields: str) -> int | None:
            left = [field for field in fields if (struct_name, field) not in lacking.fields]
            return members(self, struct_name, *left) if left else None

        def less_bpf(command: int, attributes: bytes) -> int:
            if lacking.all:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            if lacking.refuses(command, attributes):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return bpf(command, attributes)

        def less_events(attributes: bytes, *where: Any) -> int:
            if struct.unpack_from("<I", attributes)[0] in lacking.events:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return event(attributes, *where)

        def less_kprobes(program: int, function: str) -> int:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

        if lacking.kprobes:
            monkeypatch.setattr(clocks, "open_kprobe", less_kprobes)
        monkeypatch.setattr(system_calls, "bpf", less_bpf)
        monkeypatch.setattr(system_calls, "_open_event", less_events)
        monkeypatch.setattr(KernelTypes, "has_tracepoint", lambda self, name: name not in lacking.tracepoints and has(self, name))
        monkeypatch.setattr(KernelTypes, "offset", less_fields)
        monkeypatch.setattr(system_calls, "open_raw_tracepoint", less_tracepoints)
        monkeypatch.setattr(platform, "release", lambda: "4.18.0-553.el8")  # which says nothing of what it can do
        uprobe_multi.serves.cache_clear()

    yield take
    uprobe_multi.serves.cache_clear()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_doctor_finds_by_a_try_what_is_lacking(case: Case, without: Callable[[Lacking], None]) -> None:
    before = {finding.subject: finding.ok for finding in doctor.findings() if finding.subject != "compiled"}
    without(case.lacking)
    found = {finding.subject: finding for finding in doctor.findings() if finding.subject != "compiled"}
    assert found[case.subject].ok == ("problem" if case.needed else "warning")
    assert case.said in found[case.subject].sentence and "\n" not in found[case.subject].sentence
    assert before.get(case.subject, before["scheduling"]) == "ok"
    if not case.needed:
        others = {subject: finding.ok for subject, finding in found.items()} | {case.subject: "ok"}
        assert others | {"scheduling": "ok"} == before | {case.subject: "ok"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_needed_ends_a_recording_before_it_begins_and_nothing_else_does(
    case: Case, without: Callable[[Lacking], None], capsys: pytest.CaptureFixture[str], target: Callable[..., Target]
) -> None:
    process = target("sleeper", "--wait")
    without(case.lacking)
    if case.needed:
        assert main(["attach", "--pid", str(process.pid), "-o", "/nowhere/trace"]) == HostError.exit_code
        said = capsys.readouterr().err
        assert case.said in said and "Traceback" not in said
    else:
        host.require_ebpf()
        SchedProbes(64, follow=True).close()
    process.go()
    process.done()


def test_without_a_place_where_threads_come_back_there_are_samples_on_the_core(without: Callable[[Lacking], None]) -> None:
    without(CASES["a place where threads come back"].lacking)
    samples = Samples(SimpleNamespace(shares=None, functions=None), 99, follow=True, states=True)  # type: ignore[arg-type]
    said = samples.missing()
    samples.close()
    assert len(said) == 1 and "stacks off the core are not sampled" in said[0] and "No such file" in said[0]


def test_without_uprobe_multi_programs_of_libraries_are_loaded_for_perf_events(without: Callable[[Lacking], None]) -> None:
    without(CASES["uprobe_multi"].lacking)
    programs = Programs(
        "native.c", {"tensor_sizes": tensors.SIZES_OFFSET}, {"calls": 1 << 20, "arguments": 1 << 20, "errors": 1 << 20, "natives": 64}
    )
    try:
        assert not LibraryProbes(programs, ("native_entry", "native_return")).in_one_step
    finally:
        programs.close()


@pytest.mark.parametrize("what", ["wake-ups", "migrations", "interrupts", "who is ended for memory"])
def test_without_a_tracepoint_that_is_not_needed_switches_are_recorded_and_it_is_said(what: str, without: Callable[[Lacking], None]) -> None:
    without(CASES[what].lacking)
    probes = SchedProbes(64, follow=True)
    try:
        probes.add(os.getpid())
        sleeper = threading.Thread(target=time.sleep, args=(0.01,))
        sleeper.start()
        tid = sleeper.native_id
        sleeper.join()
        (columns,) = probes.drain()["sched"]
        said = probes.missing()
    finally:
        probes.close()
    assert len(said) == 1 and CASES[what].said in said[0]
    kinds = set(columns["kind"][columns["tid"] == tid].tolist())
    assert kinds >= {SchedKind.IN, SchedKind.OUT}


def test_without_the_time_in_the_run_queue_scheduling_says_what_threads_waited_for(without: Callable[[Lacking], None]) -> None:
    without(CASES["time in the run queue"].lacking)
    samples = Samples(SimpleNamespace(shares=None, functions=None), 99, follow=True, states=True)  # type: ignore[arg-type]
    known = samples.states_known
    samples.close()
    assert not known and not samples.missing()


def test_a_kernel_without_all_that_is_not_needed_records_every_call_and_says_all_of_it(
    without: Callable[[Lacking], None], target: Callable[..., Target], tmp_path: Path
) -> None:
    cases = [case for case in CASES.values() if not case.needed]
    lists = {
        name: sum((getattr(case.lacking, name) for case in cases), ()) for name in ("maps", "helpers", "links", "tracepoints", "events", "fields")
    }
    process = target("fib", "--wait")
    without(Lacking(**lists, kprobes=True))
    found = {finding.subject: finding for finding in doctor.findings()}
    for case in cases:
        assert found[case.subject].ok == "warning" and case.said in found[case.subject].sentence

    def go() -> None:
        wait_until(lambda: any((tmp_path / "trace").rglob("*.parquet")))  # a part is written: the probes are in
        process.go()

    going = threading.Thread(target=go)
    going.start()
    assert main(["attach", "--pid", str(process.pid), "-q", "--source", "usdt", "-o", str(tmp_path / "trace")]) == 0
    going.join()
    trace = pytrace_ebpf.open(tmp_path / "trace")
    calls = trace.calls().merge(trace.functions(), on="func_id")
    fib = calls[calls["name"] == "fib"]
    assert len(fib) == process.done()["calls"]["fib"]
    assert (fib[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns"]].sum(axis=1) == fib["wall_ns"]).all()
