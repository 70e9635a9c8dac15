"""The daemon: one recording of samples for as long as it runs, of the processes that the policy is about; each window is summed and stored."""

from __future__ import annotations

import os
import platform
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytrace_ebpf.analyze.live.profile import profile
from pytrace_ebpf.analyze.live.profile_waits import ProfileWaits
from pytrace_ebpf.analyze.live.samples import LiveSamples
from pytrace_ebpf.daemon.api.listener import Listener
from pytrace_ebpf.daemon.configuration import Configuration
from pytrace_ebpf.daemon.finding import Finding
from pytrace_ebpf.daemon.lock import Lock
from pytrace_ebpf.daemon.recordings import Recordings
from pytrace_ebpf.daemon.retention import Clock, Retention
from pytrace_ebpf.daemon.service import notify
from pytrace_ebpf.daemon.store import Store
from pytrace_ebpf.errors import HostError, PytraceError
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.live.sink import Closed
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.session import Session, Status
from pytrace_ebpf.trace.joined import HOUR
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.trace.schema import STACKS

if TYPE_CHECKING:
    from pytrace_ebpf.daemon.sinks import Sinks

_SOCKET = "daemon.sock"
_PUBLISHED_S = 5.0
_REPEATED_S = 60.0  # until the same wait is said again
_STEP_S = 60.0  # a host's clock that is so far from where it was is said to be
_MOST_SAID = 20  # sentences a minute: whoever starts processes decides how many there would be
_PAGE = resource.getpagesize()
_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # itself, and what it started and has ended: recordings above all


class Daemon:
    """As daemon.service.Service has it. `run` returns when it was stopped."""

    def __init__(self, load: Callable[[], Configuration], argv: list[str], say: Callable[[str], None], serving: Sequence[str]) -> None:
        """`load` reads the configuration, at once and with each reload; `say` is given what happened, a sentence each. Raises what `load` does.

        `serving`: words that start a process that records for those who ask.
        """
        self._load, self._argv, self._say = load, argv, say
        self.configuration = load()
        self._api = Listener(self.configuration.run_directory / _SOCKET, self.configuration.requests, self, serving)
        self._stopping = self._reloading = False
        self._began_s, self._began_cpu_s = time.time(), {who: _cpu_s(who) for who in _WHO}
        self._clock, self._ahead_s = Clock(), 0.0
        self._shut: str | None = None  # why nobody can ask
        self._said = self._said_since = 0
        self._last, self._lost = Status(0.0, 0, 0, 0), Counter[str]()
        self._reloads = 0
        self._waits: dict[str, float] = {}  # what was said to be waited for, and when
        self._publishing = threading.Lock()
        self._published_s = 0.0
        self._samples: LiveSamples | None = None
        self._session: Session | None = None
        self._sinks: Sinks | None = None

    # -- service.Service ---------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """How it is going."""
        store, hours = self._store, self._hours
        uptime_s = time.time() - self._clock.ahead_s - self._began_s
        own_s, started_s = (_cpu_s(who) - before for who, before in self._began_cpu_s.items())
        percent = 100 / max(uptime_s, 1e-3) / (os.cpu_count() or 1)
        return {
            "pid": os.getpid(),
            "since": round(self._began_s, 3),
            "uptime_s": round(uptime_s, 3),
            "reloads": self._reloads,
            "directory": str(hours.path),
            "trace": str(store.trace) if store.trace else None,
            "bytes": hours.bytes,
            "traces_removed": hours.removed,
            "windows": store.windows,
            "windows_not_written": store.not_written,
            "why_not_written": store.why_not,
            "samples": self._last.samples,
            "lost": self._last.lost,
            "lost_by_class": dict(self._lost),
            "sampled": self._finding.handed,
            "ignored": self._finding.ignored,
            "too_many": self._finding.left_out,
            "most": self._finding.most,
            "users": self._finding.shares.status(self._finding.users()),
            "waiting": waiting.now(),
            "not_sampled": list(self._last.unserved[:_MOST_SAID]),
            "recordings": self._recordings.status(),
            "requests": self._api.recordings(),
            **(self._sinks.status() if self._sinks else {}),
            "cpu_s": round(own_s, 3),
            "started_cpu_s": round(started_s, 3),
            "host_percent": round(own_s * percent, 3),
            "started_host_percent": round(started_s * percent, 3),
            "rss_bytes": _rss_bytes(),
        }

    def reload(self) -> None:
        """Read the configuration again, at the next tick."""
        self._reloading = True
        self._wake()

    def stop(self) -> None:
        """End at the next tick."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._session is not None:
            self._session.wake()

    # -- running -----------------------------------------------------------------------

    def run(self) -> None:
        """Sample until stop(). Raises HostError where that is not possible here, or another daemon runs."""
        lock = Lock(self.configuration.run_directory)
        waiting.tell(lambda sentence: self._say_what_waits(lock, sentence))
        try:
            while not self._stopping:
                self._reloading = False
                self._api.permission = self.configuration.requests
                self._sample(lock)
        finally:
            notify("STOPPING=1")
            self._api.close()
            with self._publishing:
                lock.close()

    def _sample(self, lock: Lock) -> None:
        """One recording, until the next reload."""
        configuration = self.configuration
        self._hours = Retention(configuration.directory, HOUR, configuration.max_bytes, configuration.max_age_s, self._clock)
        self._store = Store(self._hours, self._argv, {"hz": configuration.hz}, configuration.window_s)
        self._finding, self._samples, self._lost = Finding(configuration), None, Counter()
        self._profile_waits = ProfileWaits(platform.machine())
        self._recordings = Recordings(configuration, self._clock)
        options = Options(
            None, source=SAMPLES_ALONE, sample=configuration.hz, switches=False, follow=False, segment_s=configuration.window_s, lean=True
        )
        if configuration.push or configuration.metrics_port:
            from pytrace_ebpf.daemon.sinks import Sinks

            self._sinks = Sinks(configuration, self._report)
        try:
            notify("WATCHDOG=1")
            self._session = session = Session(options, self._argv, self._take, looking=self._finding)
            session.start()
            if not self._api.is_open:
                self._api.open()
            notify("READY=1")
            self._progress(lock, session.status())
            session.run(self._ends, lambda status: self._progress(lock, status))
            if self._stopping:  # all that ends does so at a time
                self._recordings.end()
                self._api.end()
            session.finish()
        except HostError:
            if not self._stopping:  # while programs were loaded: the kernel lets a signal end that
                raise
        finally:
            if self._session is not None:
                self._session.close()
                self._session = None
            self._recordings.close()
            self._tell(self._recordings.take_said())
            if self._sinks:
                self._sinks.close()
            self._sinks = None
            self._store.close()
            self._hours.close()

    def _ends(self) -> bool:
        if self._reloading and not self._stopping:
            self._reloading = False
            try:
                fresh = self._load()
                if not fresh.same_place(self.configuration):
                    raise PytraceError("run_directory cannot be changed while it runs")
            except PytraceError as error:
                self._say(f"the configuration stays as it was: {error}")
                return False
            self.configuration, self._reloads = fresh, self._reloads + 1
            self._say("the configuration was read again")
            return True
        return self._stopping

    def _take(self, closed: Closed) -> None:
        """Sum a window, and store it."""
        if self._samples is None:
            self._samples = LiveSamples(closed.start_ns, platform.machine(), closed.metadata["sampling"])
        for row in closed.tables["losses"].to_pylist() if "losses" in closed.tables else ():
            self._lost[row["class"]] += row["count"]
        samples = self._samples.take(closed.tables, closed.end_ns)
        table = profile(samples, closed.tables.get("stacks", STACKS.arrow.empty_table()), closed.start_ns, closed.end_ns)
        waits = self._profile_waits.take(closed.tables, samples, closed.start_ns, closed.end_ns)
        self._store.write(closed, table, waits)
        if self._sinks:
            self._sinks.take(closed, table, self._store.functions_of(table), self._store.processes, waits)

    def _progress(self, lock: Lock, status: Status) -> None:
        """Once a second."""
        self._last = status
        self._tell((*status.said, *self._recordings.take_said()))
        for pid, rule in self._finding.take_to_record():
            try:
                self._recordings.begin(pid, rule.options)
            except PytraceError as error:
                self._report(str(error))
        if time.monotonic() >= self._published_s:
            self._published_s = time.monotonic() + _PUBLISHED_S
            notify("WATCHDOG=1")
            self._see_steps()
            self._see_door()
            self._publish(lock)

    def _publish(self, lock: Lock) -> None:
        with self._publishing:
            if self._session is None:  # it ends
                return
            try:
                how = self.status()
                if self._sinks:
                    self._sinks.publish(how)
                lock.publish(how)
            except OSError as error:
                self._report(f"its status could not be written ({error.strerror})")

    def _say_what_waits(self, lock: Lock, sentence: str) -> None:
        """By the thread that looks at waits: the status says so too, as the loop that publishes it may be what waits. The same is said once a minute."""
        now_s = time.monotonic()
        self._waits = {said: since_s for said, since_s in self._waits.items() if now_s - since_s < _REPEATED_S}
        if self._waits.setdefault(sentence, now_s) == now_s and len(self._waits) < _MOST_SAID:
            self._report(sentence)
        self._publish(lock)

    def _see_steps(self) -> None:
        ahead_s = self._clock.ahead_s
        if abs(ahead_s - self._ahead_s) >= _STEP_S:
            way = "forward" if ahead_s > self._ahead_s else "back"
            self._report(
                f"the host's clock was stepped {abs(ahead_s - self._ahead_s):,.0f} s {way}: what is sampled from now on has its moments, and max_age goes by "
                "the time that passes"
            )
            self._ahead_s = ahead_s

    def _see_door(self) -> None:
        if self._api.is_open:
            return
        try:
            self._api.open()
            shut, said = None, "its socket was gone; it listens again"
        except HostError as error:
            shut = said = str(error)
        if shut is None or shut != self._shut:
            self._report(said)
        self._shut = shut

    def _tell(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self._report(sentence)

    def _report(self, sentence: str) -> None:
        minute = int(time.monotonic() / 60)
        if minute != self._said_since:
            self._said, self._said_since = 0, minute
        self._said += 1
        if self._said <= _MOST_SAID:
            self._say(sentence if self._said < _MOST_SAID else f"{sentence}; more of this minute is left out")


def _cpu_s(who: int) -> float:
    return sum(resource.getrusage(who)[:2])


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
