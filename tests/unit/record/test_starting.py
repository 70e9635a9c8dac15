"""What a recording waits for before it begins, and what it does not."""

import errno
import gc
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.output import ready
from pytrace_ebpf.record.parsing.sandbox import Sandbox
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.launch import Started
from pytrace_ebpf.record.process.pinned import Ended, Pinned
from pytrace_ebpf.record.source_selection import cpu_baseline
from pytrace_ebpf.view.by import BY
from tests.unit.synthetic import sample

REPOSITORY = Path(__file__).parents[3]
# What takes long to import and is used only once there is something to write, or not at all.
LATE = (
    *("pyarrow", "pandas", "psutil", "rich", "statistics"),
    *("pytrace_ebpf.record.native.layers", "pytrace_ebpf.record.output.horizon"),
    "pytrace_ebpf.record.sampling.samples",
)


def loaded(program: str) -> set[str]:
    """The modules that a new process has once it has run `program`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("command", ["run", "attach"])
def test_a_recording_begins_without_what_writes(command: str) -> None:
    modules = loaded(f"""
from pytrace_ebpf.cli import main
from pytrace_ebpf.options import recording
main.parser([{command!r}])
recording.prepare()
import pytrace_ebpf.record.session, pytrace_ebpf.record.agent.calls, pytrace_ebpf.record.usdt.calls, pytrace_ebpf.record.scheduling.sched
""")
    assert "numpy" in modules and not modules & set(LATE)
    assert not [name for name in modules if name.startswith(("pytrace_ebpf.analyze", "pytrace_ebpf.derive"))]


def test_a_program_that_is_started_does_not_wait_for_what_injects() -> None:
    modules = loaded("import pytrace_ebpf.cli.run, pytrace_ebpf.record.session, pytrace_ebpf.record.agent.calls")
    assert not [name for name in modules if name.startswith("pytrace_ebpf.record.agent.inject")]


@pytest.mark.parametrize("forgo", [True, False])
def test_what_writes_is_ready_in_every_thread_and_brings_pandas_only_where_it_may(forgo: bool) -> None:
    modules = loaded(f"""
import threading
from pytrace_ebpf.record.output import ready
from pytrace_ebpf.record.parsing.sandbox import Sandbox
if {forgo}: ready.forgo_pandas()
assert ready.begin() is ready.begin()
threads = [threading.Thread(target=ready.make_ready) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
import sys
from pytrace_ebpf.lazy_imports import pa, pq, psutil
assert pa.table is sys.modules["pyarrow"].table and pq.write_table is sys.modules["pyarrow.parquet"].write_table
assert psutil.Process is sys.modules["psutil"].Process
""")
    assert ("pandas" in modules) != forgo


def test_a_report_imports_what_it_needs_and_no_other_kind_of_row(tmp_path: Path) -> None:
    """What is kept is answered without what derives it, and without what reads samples, tensors or values."""
    trace = str(sample(tmp_path / "trace"))
    program = "import contextlib, io\nfrom pytrace_ebpf.cli.main import main\nwith contextlib.redirect_stdout(io.StringIO()): assert not main(['report', {!r}, *{!r}])"
    loaded(program.format(trace, []))
    modules = loaded(program.format(trace, []))
    assert {"pytrace_ebpf.view.functions", "pandas"} <= modules and "rich.progress" not in modules
    rooms = ("rebuild", "derive.sinks", "derive.native", *(f"analyze.{name}" for name in ("native", "observed", "requests", "tasks", "samples")))
    derives = [name for name in modules if name.startswith(tuple(f"pytrace_ebpf.{room}." for room in rooms))]
    assert not modules & {f"pytrace_ebpf.derive.{name}" for name in ("one_pass", "tables", "feed", "store", "sums", "checkpoints")}
    assert sorted(derives) == ["pytrace_ebpf.analyze.samples.sampling", "pytrace_ebpf.rebuild.answers"]  # the second has numbers alone
    kinds = {f"pytrace_ebpf.view.{by.module}" for by in BY.values()}
    assert len(kinds) > 10 and modules & kinds == {"pytrace_ebpf.view.functions", "pytrace_ebpf.view.waits"}  # waits are in its sentence
    assert "pytrace_ebpf.view.threads" in loaded(program.format(trace, ["--by", "thread"]))


def test_nothing_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ready.make_ready()
    monkeypatch.setattr(ready, "keep_freed_memory", lambda: pytest.fail("it was ready"))
    ready.make_ready()
    ready.begin().join()


def test_the_end_of_a_started_program_is_heard_of() -> None:
    started = Started(["/bin/sleep", "60"], {}, lambda _: None)
    assert started.end is not None and not select.select([started.end], [], [], 0)[0]
    os.kill(started.pid, signal.SIGKILL)
    assert select.select([started.end], [], [], 60)[0]
    started.poll()
    assert started.exit_code == 128 + signal.SIGKILL


def test_a_started_program_ignores_what_this_one_was_told_to_and_not_what_python_does(capfd: pytest.CaptureFixture[str]) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    started = Started(["/bin/grep", "SigIgn", "/proc/self/status"], {}, lambda _: None)
    for number, handler in before.items():
        signal.signal(number, handler)
    os.waitpid(started.pid, 0)
    ignored = int(capfd.readouterr().out.split()[1], 16)
    assert [number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ) if ignored >> number - 1 & 1] == [
        signal.SIGHUP,
        signal.SIGINT,
    ]


def pinned_and_ended() -> Pinned:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pinned = Pinned(process.pid)
        cpu_baseline.note_baseline(process.pid)
        process.kill()
    return pinned


def test_a_look_begins_at_the_first_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Pinned(os.getpid())
    cpu_baseline.note_baseline(process.pid)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    waited: list[float] = []
    monkeypatch.setattr(cpu_baseline.time, "sleep", waited.append)
    assert cpu_baseline.cpu_share(process.key, 0.0) > 0
    assert waited == [0.0]
    cpu_baseline.cpu_share(process.key, 1000.0)  # a second look is one of its own
    assert 999 < waited[1] <= 1000


def test_what_is_open_for_a_process_is_closed_with_the_last_reference_to_it() -> None:
    """The daemon looks at many: with few files there would be none left before the next collection of cycles."""

    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    gc.disable()
    try:
        process = Pinned(os.getpid())
        assert process.memory.kept() and opened() > before
        del process
        assert opened() == before
    finally:
        gc.enable()


def test_what_cannot_be_seen_just_now_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Pinned(os.getpid())
    monkeypatch.setattr(process, "status", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(TargetError, match=r"cannot be looked at \(Too many open files\)") as raised:
        process.check()
    assert not isinstance(raised.value, Ended)


def test_another_process_of_the_same_number_is_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Pinned(os.getpid())
    cpu_baseline.note_baseline(process.pid)
    monkeypatch.setattr(cpu_baseline.time, "sleep", lambda _: None)
    monkeypatch.setitem(cpu_baseline._glances, (process.pid, "0"), (0, 10**18))  # of the one before
    assert cpu_baseline.cpu_share(process.key, 0.0) >= 0
    assert (process.pid, "0") in cpu_baseline._glances and process.key not in cpu_baseline._glances


def test_one_that_ended_is_no_share() -> None:
    process = pinned_and_ended()
    with pytest.raises(OSError):
        cpu_baseline.cpu_share(process.key, 0.0)
    cpu_baseline.note_baseline(process.pid)  # there is nothing to look at
    assert process.key not in cpu_baseline._glances


def test_glances_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_baseline, "_glances", {(number, "0"): (0, 0) for number in range(cpu_baseline._MOST_KNOWN)})
    cpu_baseline.note_baseline(os.getpid())
    (key,) = cpu_baseline._glances
    assert key == (os.getpid(), stat.fields(Path("/proc/self/stat").read_bytes())[stat.START])


def test_a_reader_that_was_dismissed_ends_and_another_one_answers() -> None:
    reader = Sandbox("pytrace_ebpf.record.parsing.parsers")
    reader.start()
    first = reader.pid
    assert first is not None
    end = os.pidfd_open(first)
    reader.dismiss()
    assert select.select([end], [], [], 60)[0]
    os.close(end)
    with Path(sys.executable).open("rb") as file:
        assert any(name.startswith("libc.") for name in reader.ask("needed", {}, [file], tuple[str, ...], 60))
    second = reader.pid
    reader.dismiss()
    reader.close()
    assert second not in (first, None) and reader.pid is None
    for pid in (first, second):  # both were waited for
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize("given", [{}, {"OPENBLAS_NUM_THREADS": "3"}])
def test_a_program_gets_the_callers_number_of_blas_threads(given: dict[str, str]) -> None:
    program = "import os\nfrom pytrace_ebpf.options import recording\nrecording.prepare()\nprint(os.environ.get('OPENBLAS_NUM_THREADS'))"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"} | given
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == given.get("OPENBLAS_NUM_THREADS", "None")
