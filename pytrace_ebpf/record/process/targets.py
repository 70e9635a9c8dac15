"""The processes that a recording is of: added, followed, ended."""

import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.process.following import Following
from pytrace_ebpf.record.process.launch import Launched, Started
from pytrace_ebpf.record.process.matching import Looking
from pytrace_ebpf.record.process.pinned import Ended
from pytrace_ebpf.record.process.process_tree import children
from pytrace_ebpf.record.process.target import (
    NotPython,
    Target,
    inspect,
    links_libpython,
    living_threads,
    maps_libpython,
)
from pytrace_ebpf.record.recorder import Recorder
from pytrace_ebpf.record.source import Recording
from pytrace_ebpf.record.source_selection.cost_estimate import MOST_SHARE
from pytrace_ebpf.record.source_selection.cpu_baseline import note_baseline
from pytrace_ebpf.record.source_selection.no_calls import why_no_calls
from pytrace_ebpf.record.source_selection.selection import announced
from pytrace_ebpf.record.source_selection.sources import Sources

_DESCRIBED = ("command", "executable", "python_version")
_MOST_NAMED = 100  # of the processes that were asked for, in the manifest
_MOST_SAID = 20  # sentences about processes that cannot be traced: others may start any number of those


@dataclass(frozen=True)
class Begun:
    """A running process that is traced from now on: by which source, why and at what cost; and a warning, or ""."""

    pid: int
    source: str
    warning: str


class Targets:
    """What was asked for, and what that has started; `opens` is called with the manifest's `target` before anything is recorded of the first."""

    def __init__(
        self, options: Options, recording: Recording, sources: Sources, recorders: Sequence[Recorder],
        opens: Callable[[Mapping[str, Any]], None], drain: Callable[[], None], looking: Looking | None = None,
    ) -> None:  # fmt: skip
        """`drain`: takes in what the recorders have. `looking`: what finds processes that come to fit."""
        self._options, self._recording, self._sources, self._recorders = options, recording, sources, recorders
        self._processes = recording.processes
        self._opens, self._drain = opens, drain
        self._asked: dict[int, dict[str, Any]] = {}  # described, in the order in which they were added
        self._gone: set[int] = set()  # of those
        self._following = Following(recording, sources, recorders)
        self._matching = looking
        self.launched: Launched | Started | None = None
        self._said: list[str] = []
        self._refusals = 0

    # -- added ---------------------------------------------------------------------

    def attach(self, pids: Sequence[int]) -> list[Begun]:
        """Attach to running processes, and to those that fit the pattern.

        One that cannot be traced is reported by take_said(), and costs the others nothing. Raises TargetError or HostError where none is left.
        """
        asked: list[tuple[int, Target | Exception | None]] = [(pid, None) for pid in dict.fromkeys(pids)]
        if self._matching:
            asked += [found for found in self._matching.there() if found[0] not in pids]
        asked = [(pid, found or _inspected(pid)) for pid, found in asked]
        self._survey([found for _, found in asked if isinstance(found, Target)])
        begun, refused = list[Begun](), list[tuple[int, Exception]]()
        for pid, found in asked:
            if self._is_traced(pid):  # as the child of another one
                self._open(pid, {name: self._processes.processes[pid][name] for name in _DESCRIBED})
                continue
            try:
                begun.append(self._attach(pid, found))
            except (TargetError, HostError) as error:
                refused.append((pid, error))
                continue
            self._attach_children(pid)
        if not begun and self._matching and self._matching.patient:
            self._opens(self.metadata())
        elif not begun and len(refused) == 1:
            raise refused[0][1]
        elif not begun:
            raise TargetError(
                f"none of {len(refused)} processes can be traced; of the first: {refused[0][1]}"
                if refused
                else f"no Python process {self._matching.sought if self._matching else 'fits'}; start it first"
            )
        for pid, why in refused:
            self._refuse(pid, why)
        return begun

    def launch(self, command: Sequence[str]) -> int:
        """Start a program, traced from its first instruction where it is a Python. Returns its pid. Raises TargetError."""
        self._following.preloaded = True
        environment = self._sources.launches()
        self._said += filter(None, [self._sources.remark])
        if self._options.rootless:
            self.launched = Started(command, environment, lambda started: self._begin_with_other(started.pid, command))
        else:
            self.launched = Launched(command, environment, self._at_exec)  # calls _at_exec already
        return self.launched.pid

    def _survey(self, asked: Sequence[Target]) -> None:
        """Look at what is going to be traced together before a source is chosen for any of it: these, and what they have started."""
        if self._options.source not in ("auto", "usdt"):
            return
        found, waiting = {target.pid: target for target in asked}, [target.pid for target in asked] if self._options.follow else []
        while waiting:
            started = [child for child in children(waiting.pop()) if child not in found and child != os.getpid()]
            for child in started:  # so that all of them are looked at together
                note_baseline(child)
            for child in started:
                if isinstance(target := _inspected(child), Target):
                    found[child] = target
                    waiting.append(child)
        self._sources.survey(list(found.values()))

    def _attach(self, pid: int, found: Target | Exception | None) -> Begun:
        if isinstance(found, Exception):
            raise found
        target = found or inspect(pid)
        choice, seen = self._sources.plan(target)
        self._processes.ran.forget(pid)  # another process that had its number
        self._open(pid, _described(target))
        now = time.monotonic_ns()
        try:
            self._add(pid)
        except (TargetError, HostError):
            self._asked.pop(pid, None)
            self._record_scheduling(pid, target.ppid, now)  # some of it is there already
            raise
        bound = MOST_SHARE if self._options.unasked and self._options.match is not None else None
        return Begun(pid, announced(target, choice, seen, self._sources.price, bound), choice.warning)

    def _attach_children(self, pid: int) -> None:
        """Attach to what a process had started before it was added itself."""
        waiting = [pid] if self._options.follow else []
        while waiting:
            creator = waiting.pop(0)
            found = [child for child in children(creator) if child != os.getpid()]  # a program may start its own tracer
            for child in found:  # so that all of them are looked at together
                note_baseline(child)
            self._drain()  # children that start from now on are reported by the kernel
            for child in found:
                if not self._is_traced(child):
                    self._attach_child(child, creator)
                    waiting.append(child)

    def _attach_child(self, pid: int, creator: int) -> None:
        now = time.monotonic_ns()
        try:
            self._sources.plan(inspect(pid))
            self._add(pid)
        except (TargetError, HostError) as error:
            if not isinstance(error, NotPython | Ended):
                self._recording.declare(pid, None, str(error))
            self._record_scheduling(pid, creator, now)

    def _record_scheduling(self, pid: int, creator: int, since_ns: int) -> None:
        """All that can be recorded of what is no Python, or of one whose calls cannot be."""
        if living_threads(pid):
            self._add(pid)
            self._processes.add_other(pid, creator, since_ns)
            self._processes.add_threads(pid, since_ns)

    def _is_traced(self, pid: int) -> bool:
        row = self._processes.processes.get(pid)
        return row is not None and row["end_ns"] is None

    def _add(self, pid: int) -> None:
        for recorder in self._recorders:
            recorder.approach(pid)
        for recorder in self._recorders:
            recorder.add(pid)

    def _refuse(self, pid: int, error: Exception) -> None:
        self._recording.declare(pid, None, str(error))
        self._say(str(error))

    def _say(self, sentence: str) -> None:
        self._refusals += 1
        if self._refusals <= _MOST_SAID:
            self._said.append(sentence if self._refusals < _MOST_SAID else f"{sentence}; there are more such processes")

    def _at_exec(self, launched: Launched) -> bool:
        """The launched program stands at its first instruction: probe it if it is a Python; True = done with it."""
        pid = launched.pid
        try:
            if links_libpython(pid):
                launched.step_until(lambda: maps_libpython(pid))
            target = inspect(pid)
        except TargetError:
            self._begin_with_other(pid)
            return False
        self._sources.plan_held(target)
        self._open(pid, _described(target))
        self._add(pid)
        return True

    def _begin_with_other(self, pid: int, command: Sequence[str] = ()) -> None:
        """`command`: what the process is about to become, where it is not that yet."""
        now = time.monotonic_ns()
        self._processes.add_other(pid, os.getpid(), now)
        self._processes.add_threads(pid, now)
        if command:
            self._processes.describe(pid, shlex.join(command), shutil.which(command[0]) or command[0])
        self._open(pid, {name: self._processes.processes[pid][name] for name in _DESCRIBED})
        self._add(pid)

    def _open(self, pid: int, described: dict[str, Any]) -> None:
        self._asked[pid] = {"pid": pid} | described
        self._opens(self.metadata())

    # -- followed ------------------------------------------------------------------

    def follow(self) -> None:
        """React to what happened to processes, and attach to those that came to fit."""
        held = self.launched.pid if self.launched is not None and self.launched.held else None
        self._following.follow(self._processes.take_news(), held)
        self._following.attach_to_started()

    def poll(self) -> None:
        """See how a launched program is; attach to what came to fit the pattern, where nobody follows it already. Raises TargetError."""
        if self.launched is not None:
            self.launched.poll()
            if self.launched.status is not None:
                self._processes.waited_for(self.launched.pid, self.launched.status)
        for sentence in self._sources.change():
            self._say(sentence)
        if self._matching is None:
            return
        for pid, found in self._matching.newcomers():
            if not self._is_traced(pid):
                self._attach_newcomer(pid, found, self._matching)
        for pid in self._matching.take_let_go():
            self._processes.let_go(pid)
        self._said += self._matching.shares.take_said()

    def _attach_newcomer(self, pid: int, found: Target | Exception, matching: Looking) -> None:
        """Attach to what came to match. Nothing is drained meanwhile, so what it takes is charged to its user; where it fails, the wait as well."""
        user = matching.user(pid)
        began_s, failed = time.monotonic(), isinstance(found, Target)
        try:
            with matching.shares.charged(user):
                begun = self._attach(pid, found)
            failed = False
        except Ended:
            return
        except (TargetError, HostError) as error:
            self._refuse(pid, error)
            return
        finally:
            if failed:
                matching.shares.charge(user, time.monotonic() - began_s)
        self._said.append(f"tracing process {pid} as well, by {begun.source}")
        self._attach_children(pid)

    def let_go_of_ended(self) -> None:
        """In a second without new processes, release what was needed of those that ended."""
        self._following.let_go_of_ended()

    # -- ended ---------------------------------------------------------------------

    def ended(self) -> bool:
        """Whether all that was asked for has ended; with a pattern there may always be more."""
        if self.launched is not None:
            return self.launched.status is not None
        if self._matching is not None:
            return False
        for pid in self._asked.keys() - self._gone:
            if pid in self._processes.processes and not self._is_traced(pid):
                self._gone.add(pid)
        return len(self._gone) == len(self._asked)

    @property
    def asked(self) -> set[int]:
        """The processes that were asked for, or that fitted a pattern."""
        return set(self._asked)

    def metadata(self) -> dict[str, Any]:
        """The manifest's `target`, the first one, and `targets`, all that were asked for."""
        for pid, described in self._asked.items():
            if row := self._processes.processes.get(pid):
                described |= {name: row[name] for name in _DESCRIBED}
        asked = list(self._asked.values())[:_MOST_NAMED]
        if self._matching is not None:  # there may come any number of them
            self._asked = {each["pid"]: each for each in asked}
        left_alone = self._matching.shares.metadata() if self._matching is not None else {}
        return {
            "target": dict(asked[0]) if asked else {"pid": 0},
            "targets": [{"pid": each["pid"], "command": each["command"]} for each in asked],
        } | left_alone

    def take_said(self) -> list[str]:
        """What there is to say of processes since the last call, a sentence each."""
        said, self._said = self._said, []
        return said

    def explain_no_calls(self) -> None:
        """Say of a launched program of which no call came why that may be."""
        if self.launched is not None and not self._recording.chosen:
            pid = self.launched.pid
            self._recording.declare(pid, None, why_no_calls(self._processes.processes[pid]["executable"]))

    def close(self) -> None:
        """Let a launched program go, whatever it is."""
        if self.launched is not None:
            self.launched.release()
        if self._matching is not None:
            self._matching.close()


def _inspected(pid: int) -> Target | Exception:
    try:
        return inspect(pid)
    except (TargetError, HostError) as error:
        return error


def _described(target: Target) -> dict[str, Any]:
    return {"command": target.command, "executable": target.executable, "python_version": target.version_text}
