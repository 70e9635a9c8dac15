"""pytest --pytrace DIR: the calls of all tests are recorded, and those that got slower than in a baseline are named, with what they do longer.

pytest loads this plugin itself where pytrace-ebpf is installed; nothing else is imported unless --pytrace is given. docs/diff.md.
"""

import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_DETAILED = 5  # tests of which it is said what they do longer
_STAMPS = pytest.StashKey[list[int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """--pytrace and what goes with it."""
    group = parser.getgroup("pytrace-ebpf", "where the time of tests goes")
    group.addoption(
        "--pytrace", metavar="DIR", help="record the calls of all tests into DIR, each time into a directory of its own there (needs root)"
    )
    group.addoption("--pytrace-baseline", metavar="DIR", help="compare with the runs in DIR: name the tests that got slower, and what they do longer")
    group.addoption("--pytrace-slower", metavar="SHARE", default="20%", help="name tests that take longer by more than this share (20%%)")
    group.addoption(
        "--pytrace-by", choices=("on_cpu", "wall"), default="on_cpu", help="the time that decides: its process's on a core, or by the clock (on_cpu)"
    )
    group.addoption("--pytrace-fail", action="store_true", help="exit with code 1 where a test surely got slower: of three or more runs on each side")
    group.addoption("--pytrace-single-run", action="store_true", help="with --pytrace-fail, also where there are too few runs to be sure")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that was started, and stamp tests where they run: with pytest-xdist in its workers."""
    if config.getoption("pytrace") is None:
        given = [name for name in ("pytrace_baseline", "pytrace_fail", "pytrace_single_run") if config.getoption(name)]
        if given:
            raise pytest.UsageError(f"--{given[0].replace('_', '-')} has no effect without --pytrace.")
        return
    config.pluginmanager.register(_Stamps(), "pytrace-stamps")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recording(config), "pytrace-recording")


class _Stamps:
    """When each test itself ran, on the clock of the trace."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        cpu_ns, start_ns = time.process_time_ns(), time.monotonic_ns()
        try:
            return (yield)
        finally:
            item.stash[_STAMPS] = [os.getpid(), threading.get_native_id(), start_ns, time.monotonic_ns(), time.process_time_ns() - cpu_ns]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "call" and _STAMPS in item.stash:
            report.pytrace = item.stash[_STAMPS]
        return report


class _Recording:
    """The recorder of this pytest and its workers, and what came of it."""

    def __init__(self, config: pytest.Config) -> None:
        from pytrace_ebpf.diff import tests
        from pytrace_ebpf.errors import PytraceError
        from pytrace_ebpf.self_recording import SelfRecording
        from pytrace_ebpf.units import share_of

        self._config, self._tests = config, list[dict[str, Any]]()
        self._said: list[str] = []
        baseline = config.getoption("pytrace_baseline")
        try:
            self._limit = share_of("--pytrace-slower", config.getoption("pytrace_slower"))
            self._before = tests.recorded_in(Path(baseline)) if baseline else {}
        except PytraceError as error:
            raise pytest.UsageError(str(error)) from None
        if os.geteuid() != 0:
            raise pytest.UsageError("--pytrace attaches to pytest, which needs root: run pytest as root, for example in a container.")
        self._directory = Path(config.getoption("pytrace"))
        try:
            self._run = tests.next_run(self._directory)
        except OSError as error:
            raise pytest.UsageError(f"{error.filename} cannot be written ({error.strerror}); name another directory with --pytrace.") from None
        self._own = SelfRecording(self._run / tests.TRACE)
        try:
            self._own.begin()
        except PytraceError as error:
            raise pytest.UsageError(f"--pytrace: {error}") from None

    def pytest_runtest_logreport(self, report: Any) -> None:
        stamps = getattr(report, "pytrace", None)
        if stamps is not None:
            self._tests.append({"test": report.nodeid, **dict(zip(("pid", "tid", "start_ns", "end_ns", "cpu_ns"), stamps, strict=True))})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from pytrace_ebpf.diff import tests
        from pytrace_ebpf.errors import PytraceError
        from pytrace_ebpf.units import plural

        try:
            self._own.end()
        except PytraceError as error:
            self._said = [f"the recording failed: {error}"]
            return
        tests.write_tests(self._run, self._tests)
        self._said = [f"{plural(len(self._tests), 'test')} recorded in {self._run}"]
        if self._before:
            found = tests.slower(self._before, tests.recorded_in(self._directory), self._limit, self._config.getoption("pytrace_by"))
            self._said += _sentences(found, len(self._tests))
            insists = self._config.getoption("pytrace_single_run")
            fails = any(each.sure or (each.sure is None and insists) for each in found)
            if fails and self._config.getoption("pytrace_fail") and session.exitstatus == 0:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("pytrace-ebpf")
        for line in self._said:
            terminalreporter.line(line)

    def pytest_unconfigure(self) -> None:
        self._own.end()


def _sentences(found: list[Any], count: int) -> list[str]:
    """Which tests got slower and, of the first ones, what they do longer and where to look; which only may have."""
    from pytrace_ebpf.diff.slower_tests import sentence
    from pytrace_ebpf.diff.verdict import LEAST_RUNS, RATE
    from pytrace_ebpf.printable import printable
    from pytrace_ebpf.units import plural

    sure, few, chance = ([each for each in found if each.sure is kind] for kind in (True, None, False))
    heads = (
        (sure, f"got slower (where nothing changed at most {RATE:.0%} of comparisons name any test):"),
        (few, f"took longer, which fewer than {LEAST_RUNS} runs of each side cannot tell from chance:"),
    )
    said = []
    for some, head in heads:
        if some:
            rest = [f"and {len(some) - _DETAILED:,} more"] if len(some) > _DETAILED else []
            said += [f"{len(some):,} of {plural(count, 'test')} {head}", *(printable(sentence(each)) for each in some[:_DETAILED]), *rest]
    if not sure and not few:
        said.append(f"none of {plural(count, 'test')} got slower")
    if chance:
        said.append(f"{plural(len(chance), 'test')} took longer by no more than may be chance")
    return said
