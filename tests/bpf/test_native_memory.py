"""Blocks of malloc's: each where all are asked for, and their sums where they are sampled; by function, and of whom they cannot be had."""

import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.kernel import uprobe_multi
from pytrace_ebpf.record.native import blocks
from pytrace_ebpf.record.native.blocks import Blocks
from pytrace_ebpf.record.process.processes import Processes
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import LOSS_CLASSES
from tests.bpf.conftest import COMMAND, lost
from tests.conftest import PATIENCE_S, Python, Target

SAMPLE_BYTES = 512 << 10


@pytest.fixture(params=["as this kernel has them", "as before Linux 6.13", "one by one"])
def probed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Blocks]]:
    """`probed(sample_bytes)`: a recorder alone, with the probes that this kernel has and with those of an older one."""
    if "as this" not in request.param:
        monkeypatch.setattr(uprobe_multi, "load_session", lambda *_: None)
    if request.param == "one by one":
        monkeypatch.setattr(uprobe_multi, "serves", lambda: False)
    opened: list[Blocks] = []

    def make(sample_bytes: int) -> Blocks:
        opened.append(Blocks(Recording(Functions(), Processes()), sample_bytes))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def recorded(recorder: Blocks, process: Target, monkeypatch: pytest.MonkeyPatch) -> tuple[pd.DataFrame, dict[int, list[int]]]:
    """All rows of a target's work, and what it says of it."""
    monkeypatch.setattr(recorder, "_look", lambda pids, look=recorder._look: look([process.pid]))
    recorder.add(process.pid)
    process.go()
    said = process.done()
    (columns,) = recorder.drain()["native_blocks"]
    return pd.DataFrame(columns), {int(size): counts for size, counts in said["expected"].items()}


def losses(recorder: Blocks) -> dict[str, int]:
    return {name: count for name, count in zip(LOSS_CLASSES, recorder.losses().tolist(), strict=True) if count}


def test_every_block_is_seen_once_with_its_size(
    python: Python, target: Callable[..., Target], probed: Callable[..., Blocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = probed(1)
    rows, expected = recorded(recorder, target("mallocs", "--wait", python=python), monkeypatch)
    born, gone = rows[rows["level_bytes"] > 0], rows[rows["level_bytes"] < 0]
    found = {size: [int((each["block_bytes"] == size).sum()) for each in (born, gone)] for size in expected}
    assert found == expected and not losses(recorder)
    assert (rows["level_bytes"].abs() == rows["block_bytes"]).all() and (gone["allocated_ns"] <= gone["ts"]).all()
    handed = gone[gone["block_bytes"] == 70121]
    assert (handed["allocated_tid"] != handed["tid"]).all() and (handed["tid"] == handed["pid"]).all()


def test_sums_of_samples_are_right_within_their_error(
    python: Python, target: Callable[..., Target], probed: Callable[..., Blocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = probed(SAMPLE_BYTES)
    rows, expected = recorded(recorder, target("mallocs", "--wait", python=python), monkeypatch)
    for size, (count, freed) in expected.items():
        own = rows[rows["block_bytes"] == size]["level_bytes"]
        error = math.sqrt(count * size * max(0, SAMPLE_BYTES - size))
        assert own[own > 0].sum() == pytest.approx(count * size, abs=6 * error)  # of a normal distribution 1 in 500 million is beyond
        assert freed != count or own.sum() == 0  # of each sample it was seen that it is freed
    assert not losses(recorder)


def test_what_has_no_room_is_counted(
    python: Python, target: Callable[..., Target], probed: Callable[..., Blocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_RING_BYTES", 64 << 10)
    monkeypatch.setattr(blocks, "_MOST_BLOCKS", 500)
    recorder = probed(1)
    rows, expected = recorded(recorder, target("mallocs", "--wait", python=python), monkeypatch)
    count = sum(sum(counts) for counts in expected.values())
    assert len(rows) + losses(recorder)["block_ring"] + losses(recorder)["block_map"] > count
    assert len(rows) == (64 << 10) // (8 + 48)  # a ring's header, and struct block_event


def test_blocks_of_a_process_that_ended_make_room(
    target: Callable[..., Target], probed: Callable[..., Blocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, process = probed(1), target("mallocs", "--wait")
    recorded(recorder, process, monkeypatch)
    known = recorder._programs.map("blocks")
    assert len(list(known.items())) > 100
    process.wait()
    monkeypatch.undo()
    recorder.drain()  # of the processes that are known none lives
    recorder.cut()
    assert not list(known.items())


@pytest.mark.usually("agent")
def test_functions_are_charged_for_what_they_allocate_and_keep(
    python: Python, source: str, target: Callable[..., Target], traced: Callable[..., tuple[Trace, dict[str, Any]]]
) -> None:
    trace, said = traced(target("mallocs", "--wait", python=python), "--source", source, "--native-memory", "1")
    counts = {int(size): counts for size, counts in said["expected"].items()}
    rows = trace.memory().merge(trace.functions(), on="func_id").drop_duplicates("name").set_index("name")

    def amount(*sizes: int) -> Any:
        return pytest.approx(sum(size * counts[size][0] for size in sizes), rel=0.02)

    assert rows["native_bytes"]["drop"] == amount(70003, 30011, 600011)
    assert rows["native_kept_bytes"]["drop"] < 0.01 * rows["native_bytes"]["drop"]
    assert rows["native_bytes"]["zeroed"] == amount(70030)
    assert rows["native_bytes"]["resized"] == amount(70051, 90053, 5000011, 50000017)
    assert rows["native_bytes"]["aligned"] == amount(70073, 70079, 70099, 70112)
    assert rows["native_kept_bytes"]["aligned"] == amount(70112)
    everything = sum(size * count for size, (count, _) in counts.items()) - 70121 * counts[70121][0]  # which another thread allocated
    assert rows["native_bytes"]["everything"] == pytest.approx(everything, rel=0.02)
    assert not lost(trace) and trace.manifest["native_memory"] == {"sample_bytes": 1}


STATIC = (
    "#include <stdlib.h>\nint main(void) { for (volatile int i = 0; i < 200; i++) { *(volatile char *)malloc(99999) = 1; usleep(10000); } return 0; }"
)


def test_a_program_without_a_malloc_to_probe_is_recorded_without(tmp_path: Path) -> None:
    (tmp_path / "static.c").write_text(STATIC.replace("#include", "#include <unistd.h>\n#include", 1))
    subprocess.run(["gcc", "-static", "-o", tmp_path / "static", tmp_path / "static.c"], check=True)
    words = [*COMMAND, "run", "-o", str(tmp_path / "trace"), "--native-memory", "--", str(tmp_path / "static")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0
    assert "no native memory is recorded: a process maps no GNU C library, whose malloc is the one that can be probed" in done.stderr


def test_a_file_that_only_has_the_name_is_passed_over(tmp_path: Path, probed: Callable[..., Blocks]) -> None:
    """A program may map what it likes as libc.so.6."""
    (tmp_path / "libc.so.6").write_bytes(b"\x7fELF" + os.urandom(100_000))
    code = f"import mmap, os; f = os.open({str(tmp_path / 'libc.so.6')!r}, os.O_RDONLY)\n"
    code += "m = mmap.mmap(f, 65536, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC); print(1, flush=True); input()"
    (tmp_path / "program.py").write_text(code)
    with subprocess.Popen(["python3", str(tmp_path / "program.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        recorder = probed(1)
        recorder.add(process.pid)
        assert recorder._processes[process.pid].links and not recorder.missing()
        process.communicate("\n")
        assert process.returncode == 0
