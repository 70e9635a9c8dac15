"""Targets to trace, the Pythons they run on, and the rule that an eBPF test skips only where eBPF is impossible."""

import contextlib
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

REPOSITORY = Path(__file__).parent.parent
TARGETS = REPOSITORY / "tests" / "targets"
ROOTS = Path(os.environ.get("PYTRACE_ROOTS", "/var/lib/pytrace-ebpf/roots"))
HOST_PYTHON = "3.11"
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
# Version: root filesystem that scripts/roots.sh builds.
MATRIX = {"3.9": "bullseye", "3.13": "trixie", "3.14": "sid", "3.15": "sid"}
SOURCES = ("usdt", "agent")
WITH_PROBES = ("3.9", "3.11", "3.15")  # of Debian's
CAP_SYS_ADMIN = 21
EMULATED = "PYTRACE_EMULATED" in os.environ  # scripts/vm/init sets it
PATIENCE_S = int(
    os.environ.get("PYTRACE_PATIENCE_S", "300")
)  # after which a program is taken to hang, on a machine however slow; no test fails for less


@dataclass(frozen=True)
class Python:
    """An interpreter: the host's own, one in a root filesystem, or one that was built elsewhere; `version` ends with a t where it has no GIL."""

    version: str
    root: Path | None = None
    path: Path | None = None  # None: Debian's

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of function events that serve it."""
        return SOURCES if self.path is None and self.version in WITH_PROBES else SOURCES[1:]

    @property
    def minor(self) -> int:
        """The second number of its version."""
        return int(self.version.split(".")[1].rstrip("t"))

    def __str__(self) -> str:
        return f"{'built' if self.path else 'python'}{self.version}"

    def command(self, program: str, *args: str) -> list[str]:
        """Words that run tests/targets/PROGRAM.py; the process started is the Python itself."""
        return [*self.words, str(TARGETS / f"{program}.py"), *args]

    @property
    def words(self) -> list[str]:
        """Words that start it, before its arguments."""
        words = [str(self.path or f"/usr/bin/python{self.version}")]
        if self.root is None:
            return words
        return [str(REPOSITORY / "scripts" / "in-root.sh"), "--at", str(TARGETS), str(self.root), *words]


class Target:
    """A running target: its process, and what it says on stdout."""

    def __init__(self, python: Python, program: str, *args: str) -> None:
        """Start it and wait until it is ready; with the argument `--wait` its work has not begun then."""
        self.python = python
        self.path = TARGETS / f"{program}.py"
        self.process = subprocess.Popen(
            python.command(program, *args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._watchdog = threading.Timer(PATIENCE_S, self.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        self._expect("ready")

    @property
    def pid(self) -> int:
        """Its process id, which exec does not change."""
        return self.process.pid

    def go(self) -> None:
        """Write the line that `--wait` (then `--hold`) waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")

    def ready(self) -> None:
        """Wait until it says once more that its work can begin: another program in its place."""
        self._expect("ready")

    def done(self) -> dict[str, Any]:
        """Wait for the end of its work and return what it says about it."""
        return dict(json.loads(self._expect("done")))

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing behind."""
        self._watchdog.cancel()
        self.kill()
        self.process.communicate()

    def _expect(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, _, rest = line.rstrip("\n").partition(" ")
            if first == word:
                return rest
        raise AssertionError(f"{self.path.name} ended with {self.process.wait()} before it said {word!r}")


@pytest.fixture
def target() -> Iterator[Callable[..., Target]]:
    """`target(program, *args, python=...)` starts tests/targets/PROGRAM.py and returns the Target, ready."""
    started: list[Target] = []

    def start(program: str, *args: str, python: Python = Python(HOST_PYTHON)) -> Target:
        started.append(Target(python, program, *args))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(autouse=True)
def asked_again() -> Iterator[None]:
    """A recording that ends in this process lets nobody ask the process without rights any more; a test after it makes a recorder without starting that."""
    yield
    sandbox = sys.modules.get("pytrace_ebpf.record.parsing.sandbox")  # not of those who only read traces
    if sandbox and (asked := sandbox.parsers.of_this_thread()).is_abandoned:
        asked.start()


@pytest.fixture
def none_ignored() -> Iterator[None]:
    """SIGHUP and SIGINT end what a test starts; it would inherit that they are ignored where the tests run under nohup or in the background."""
    ignored = [number for number in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def truth() -> Callable[..., dict[tuple[str, str, int], int]]:
    """`truth(program, *args, python=...)`: entries by (file, name, first line), counted from inside.

    The name is qualified on 3.11 and later. See tests/targets/truth.py for what is counted.
    """

    def count(program: str, *args: str, python: Python = Python(HOST_PYTHON)) -> dict[tuple[str, str, int], int]:
        options = [program] if program.startswith("--") else []
        program, args = (args[0], args[1:]) if options else (program, args)
        words = python.command("truth", *options, str(TARGETS / f"{program}.py"), *args)
        run = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
        counts = {}
        for key, number in json.loads(run.stdout.splitlines()[-1]).items():
            file_and_name, _, line = key.rpartition(":")
            file, _, name = file_and_name.rpartition(":")
            counts[file, name, int(line)] = number
        return counts

    return count


@pytest.fixture
def public_path() -> Iterator[Path]:
    """As tmp_path, but every user comes as far as to it; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory(prefix="pytrace-ebpf-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def quick_compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A C compiler for CC that optimizes nothing, for tests of what is built and not of how fast that is."""
    path = tmp_path_factory.mktemp("compiler") / "quick"
    path.write_text('#!/bin/sh\nexec cc "$@" -O0 -fno-lto\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def clock_seconds(pytestconfig: pytest.Config) -> int:
    """How long to compare the clocks."""
    return int(pytestconfig.getoption("--clock-seconds"))


def why_not_bpf() -> str | None:
    """Why this host cannot load eBPF programs, in one sentence; None where it can. Uses none of our own code."""
    headers = (
        os.environ.get("BCC_KERNEL_SOURCE", ""),
        f"/lib/modules/{platform.release()}/build",
        "/var/lib/pytrace-ebpf/headers/include/linux",
    )
    status = Path("/proc/self/status").read_text() if Path("/proc/self/status").exists() else ""
    capabilities = int(next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), "0"), 16)
    checks = {
        "not root": os.geteuid() == 0,
        "root without its capabilities, as in a container": bool(capabilities >> CAP_SYS_ADMIN & 1),
        "the kernel has no BTF (/sys/kernel/btf/vmlinux)": Path("/sys/kernel/btf/vmlinux").exists(),
        "the kernel has no uprobes": Path("/sys/bus/event_source/devices/uprobe/type").exists(),
        "bcc is not installed": importlib.util.find_spec("bcc") is not None,
        "no kernel headers": any(path and Path(path).is_dir() for path in headers),
    }
    return next((reason for reason, holds in checks.items() if not holds), None)


def links_of(folder: Path) -> list[str]:
    """What the links in `folder` name, those of descriptors that are closed meanwhile left out."""
    found = []
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


def without_rights(user: int, *words: str) -> list[str]:
    """A command that runs this checkout's Python as `user`, who need not be able to reach the checkout where it lies."""
    there = "/mnt"
    python = Path(sys.executable)
    if python.is_relative_to(REPOSITORY):
        python = Path(there, python.relative_to(REPOSITORY))
    script = f'mount --bind "$0" {there} && exec setpriv --reuid {user} --regid {user} --clear-groups env PYTHONPATH={there} "$@"'
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, str(REPOSITORY), str(python), *words]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", action="store_true", help="also run on the Pythons of the root filesystems and of pyenv")
    parser.addoption("--kills", type=int, default=4, help="how many tracers are killed in each case of test_kills")
    parser.addoption("--tries", type=int, default=0, help="how often each fault is tried (tests/faults); 0: once, the cheap ones alone")
    parser.addoption("--clock-seconds", type=int, default=10, help="how long the clocks of agent and kernel are compared")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`python, source`: each pair that there is, or of the mark's sources; `python` alone: those that these serve, or probes."""
    if "python" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("sources")
    usual = metafunc.definition.get_closest_marker("usually")
    if usual and not metafunc.config.getoption("--matrix"):
        mark = usual
    wanted = mark.args if mark else SOURCES if "source" in metafunc.fixturenames else ("usdt",)
    pythons = [Python(HOST_PYTHON)]
    if metafunc.config.getoption("--matrix"):
        pythons += [Python(version, ROOTS / root) for version, root in MATRIX.items()]
        pythons += built_pythons() + ([] if metafunc.definition.get_closest_marker("gil") else free_threaded_pythons())
    pairs = [(python, source) for python in pythons for source in python.sources if source in wanted]
    if "source" in metafunc.fixturenames:
        metafunc.parametrize("python, source", pairs, ids=str)
    else:
        metafunc.parametrize("python", dict.fromkeys(python for python, _ in pairs), ids=str)


def built_pythons() -> list[Python]:
    """The newest of each minor version that pyenv has, from 3.8 to 3.15."""
    newest: dict[int, Path] = {}
    for folder in sorted(PYENV.glob("3.*"), key=lambda folder: [int(part) for part in re.findall(r"\d+", folder.name)]):
        minor = int(folder.name.split(".")[1])
        if 8 <= minor <= 15 and re.fullmatch(r"[\d.]+", folder.name) and (folder / "bin" / "python3").exists():
            newest[minor] = folder / "bin" / f"python3.{minor}"
    return [Python(f"3.{minor}", path=path) for minor, path in sorted(newest.items())]


def free_threaded_pythons() -> list[Python]:
    """The builds without a GIL that scripts/roots.sh makes."""
    return [Python(folder.name, path=folder / "bin" / f"python{folder.name}") for folder in sorted(ROOTS.glob("3.*t"))]


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("COLUMNS", None)  # reports take it for the terminal's width
    config.addinivalue_line("markers", "usually(*names): those of them that are enough where --matrix is not asked for")
    config.addinivalue_line("markers", "sources(*names): the sources of function events that a test is for")
    config.addinivalue_line("markers", "gil: records what needs a GIL, and is refused without one")
    config.addinivalue_line("markers", "emulated: can stop the machine where the tracer is wrong, and runs in one of its own")
    config.addinivalue_line("markers", "cheap: a fault that is tried where --tries is not asked for, too")
    config.addinivalue_line("markers", "measured: compares with another clock of this machine, whose cores others may take meanwhile")
    # The usual tests say the same of the same code each time; the matrix looks for new examples.
    hypothesis.settings.register_profile("usual", deadline=None, derandomize=not config.getoption("--matrix"))
    hypothesis.settings.load_profile("usual")
    config.stash[_REASON] = why_not_bpf()
    config.pluginmanager.register(BpfTests(config.stash[_REASON]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reason = config.stash[_REASON]
    for item in items:
        made = getattr(getattr(item, "obj", None), "hypothesis", None)
        if made is not None and not config.getoption("--matrix") and "PYTRACE_FUZZ" not in os.environ:  # these try all that a test asks for
            asked = item.obj._hypothesis_internal_use_settings
            item.obj._hypothesis_internal_use_settings = hypothesis.settings(asked, max_examples=max(10, asked.max_examples // 3))
        if item.get_closest_marker("emulated") and not EMULATED:
            item.add_marker(pytest.mark.skip(reason="it can stop the machine; in one of its own: make test-vm"))
        if any(REPOSITORY / "tests" / name in item.path.parents for name in ("bpf", "faults")):
            item.add_marker(pytest.mark.bpf)
        live = item.get_closest_marker("bpf") or REPOSITORY / "tests" / "hostile" in item.path.parents
        reruns = 2 if item.get_closest_marker("measured") else 1 if live else 0
        if reruns and not config.getoption("--tries"):  # of a fault each try counts
            # Real programs on a machine with others: what fails each time is no other program's doing. The summary names every RERUN.
            item.add_marker(pytest.mark.flaky(reruns=reruns))
        if reason and item.get_closest_marker("bpf"):
            item.add_marker(pytest.mark.skip(reason=f"eBPF is impossible here: {reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Fail the eBPF tests that skip where they need not."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    elsewhere = item.get_closest_marker("emulated") is not None and not EMULATED
    may_skip = item.config.stash[_REASON] is not None or hasattr(report, "wasxfail") or elsewhere
    if report.skipped and item.get_closest_marker("bpf") and not may_skip:
        report.outcome = "failed"
        report.longrepr = f"This host can load eBPF programs, so no eBPF test may skip: {report.longrepr}"
    return report  # type: ignore[return-value]


class BpfTests:
    """Reports at the end how many eBPF tests ran, in all worker processes together, and why those failed that ran again."""

    def __init__(self, reason: str | None) -> None:
        self.reason, self.ran, self.skipped = reason, 0, 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "bpf" in report.keywords:
            self.skipped += report.skipped
            self.ran += report.when == "call" and report.outcome in ("passed", "failed")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        line = f"eBPF tests: {self.ran} ran, {self.skipped} skipped"
        terminalreporter.write_line(line + (f" (eBPF is impossible here: {self.reason})" if self.reason else ""))
        for report in terminalreporter.stats.get("rerun", []):
            crash = getattr(report.longrepr, "reprcrash", None)
            said = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
            terminalreporter.write_line(f"ran again: {report.nodeid}: {said[:_LONGEST]}")


_REASON = pytest.StashKey[str | None]()
_LONGEST = 2000  # characters of a failure
