"""Which cores a program was on, against one that pins itself, and against what the kernel counts."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.time import cores
from pytrace_ebpf.derive.scheduling import split
from pytrace_ebpf.derive.sinks.cores import sums_of
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.view.cores import affinity
from tests.bpf.conftest import Recorder, wait_until
from tests.bpf.test_sched import on_cpu_ns, stolen_ns
from tests.conftest import Target

pytestmark = pytest.mark.measured

TICK_NS = 10_000_000


@pytest.fixture
def hog() -> Iterator["subprocess.Popen[bytes]"]:
    """Computes on the first core, in competition with others."""
    first = min(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{first}}})\nwhile True: pass"])
    yield process
    process.kill()
    process.wait()


def timeline_of(trace: Trace):  # type: ignore[no-untyped-def]
    return split.timeline(trace.sched(), trace.processes(), trace.end_ns, trace.losses())


def test_functions_moves_and_affinity_of_a_pinned_program(
    hog: "subprocess.Popen[bytes]", target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("pinned", "--wait")
    recorder = attach(process.pid, "--source", "usdt")
    process.go()
    first, second = process.done()["cores"]
    trace = pytrace_ebpf.open(recorder.finish())
    functions = trace.functions().set_index("func_id")["name"]
    table = sums_of(trace).functions
    table = table[table["self_on_cpu_ns"] > 0].assign(name=lambda t: t["func_id"].map(functions))
    missing = trace.losses().query("`class` in ('sched_in', 'sched_out') and tid == @process.pid")  # the kernel did not report a switch
    for name, core in (("on_first", first), ("on_second", second)):
        assert table.loc[table["name"] == name, "cpu"].tolist() in ([core], *([[]] if len(missing) else []))
    seen = affinity(trace.usage(), trace.threads())
    masks = seen.loc[seen["tid"] == process.pid, "cpus"].tolist()
    assert masks[-2:] == [str(first), str(second)]
    by = cores.preemptions(trace.waits_by_part(cores.WAITS), trace.threads(), trace.neighbours()).set_index("pid")
    assert by.loc[hog.pid, "times"] > 10 and not by.loc[hog.pid, "traced"]
    assert by.loc[hog.pid, "ns"] > 1e8  # half of the core, if no other program runs on it
    moves = cores.migrations(trace.waits_by_part(cores.WAITS))
    assert ((moves["cpu_before"] == first) & (moves["cpu_after"] == second)).any()


def test_usage_and_scheduling_agree(target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    stolen = stolen_ns()
    process = target("busy")
    recorder = attach(process.pid, "--source", "agent", "--include", "nothing")
    wait_until(lambda: len(pytrace_ebpf.open(recorder.directory).usage()) > 0)  # the first sample: what is used from here on is counted
    begun = sum(on_cpu_ns(process.pid).values())
    wait_until(lambda: sum(on_cpu_ns(process.pid).values()) > begun + 5e9)
    trace = pytrace_ebpf.open(recorder.stop())
    process.kill()
    stolen = stolen_ns() - stolen
    usage = trace.usage()
    of_threads = usage[usage["kind"].astype("object") == "thread"].sort_values("ts")
    on = split.on_cores(timeline_of(trace))
    ends = of_threads.groupby("id")[["ts", "user_s", "system_s"]].agg(["first", "last"])
    counted = sliced = 0.0
    for tid, row in ends.iterrows():
        own = on[on["tid"] == tid]
        within = own["end_ns"].clip(upper=row["ts", "last"]) - own["start_ns"].clip(lower=row["ts", "first"])
        sliced += within.clip(lower=0).sum()
        counted += 1e9 * sum(row[name, "last"] - row[name, "first"] for name in ("user_s", "system_s"))
    assert counted > 1e9
    # On some virtual machines the kernel reports no switch away from their init process: 1 to 4 % of the switches are missing.
    assert sliced - counted < 0.02 * counted + 2 * TICK_NS + stolen
    assert counted - sliced < 0.05 * counted + 2 * TICK_NS + stolen
    whole = cores.parallelism(timeline_of(trace), trace.start_ns, trace.end_ns)
    assert whole["ns"].sum() == trace.end_ns - trace.start_ns
    busy = (whole["cores"] * whole["ns"]).sum()
    assert busy == (on["end_ns"].clip(upper=trace.end_ns) - on["start_ns"].clip(lower=trace.start_ns)).clip(lower=0).sum()
