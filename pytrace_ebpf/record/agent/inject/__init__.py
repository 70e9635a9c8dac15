"""Makes a running Python begin a session of the agent; nothing in it needs to be prepared.

Three routes, the least intrusive first, tried in turn until one works:
1. Python 3.14+: a script that a running thread executes at its next safe point (PEP 768);
2. a thread that waits in a harmless system call loads the library, and waits on;
3. the main thread gets a pending call of CPython, which it makes at its next safe point.

When begin() returns or raises nothing is left armed, and at every moment the target goes on unharmed if the tracer is
killed.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.agent.inject import pep768, seccomp
from pytrace_ebpf.record.agent.inject.blocked import Blocked, blocked_threads, wanting_to_run
from pytrace_ebpf.record.agent.inject.machine import machine
from pytrace_ebpf.record.agent.inject.mapped_library import agent_functions, is_loaded, loader
from pytrace_ebpf.record.agent.inject.pending_call import make_pending, pending_call
from pytrace_ebpf.record.agent.inject.ptrace import NotStopped, Stopped, refuse_what_is_debugged
from pytrace_ebpf.record.agent.inject.remote_call import Course, NoRoom, call
from pytrace_ebpf.record.agent.inject.why_not import exhausted, why_not
from pytrace_ebpf.record.agent.script import SCRIPT
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import Target

_RTLD_NOW = 2
_LOADING_ROOM = 48 << 10  # bytes of stack that dlopen and the library's constructor may use
_SAFE_POINT_S = 0.15  # a thread that runs Python comes to its next safe point much sooner
_STARTING_S = 0.005  # until an interpreter that is starting is looked at again
_GIL_S = 1.0  # then it is tried again: an agent that was still leaving an earlier session does not begin a new one


@dataclass(frozen=True)
class Injection:
    """How a session was begun."""

    how: str  # "PEP 768", "a thread blocked in poll", "a pending call of the main thread"
    stop_ns: int  # how long a thread of the target stood still for it
    warning: str = ""  # a sentence for the user, where there is something to be said


class Session(Protocol):
    """What the target is to begin."""

    path: str  # the directory, as the target names it
    library: Descriptor  # what its agent.so is a copy of, open
    inode: int  # of its agent.so
    arena_bytes: int  # of address space that it takes

    def failure(self) -> str | None:
        """Why the target could not load the library, as it says itself."""


def begin(target: Target, session: Session, started: Callable[[], bool], patience_s: float = 3.0) -> Injection:
    """Make the target run the session, and wait until it does.

    started     whether the session has begun, or was refused by the agent: then there is nothing more to do here
    patience_s  seconds until it is given up

    Raises TargetError when the target cannot begin it: it is suspended, held by a debugger, has no glibc, or comes to no
    safe point in time; HostError when this user or this machine cannot make it.
    """
    if target.pid == os.getpid():
        raise TargetError(f"process {target.pid} is the tracer itself, which no agent can be let into; --sample shows where it is")
    # The kernel lets every stopped thread go when the thread that stopped it ends.
    with waiting.on(f"process {target.pid}, to begin the agent at its next safe point"), ThreadPoolExecutor(1, "injector") as executor:
        return executor.submit(_Attempt(target, session, started, patience_s).begin).result()


def look(target: Target, library: Descriptor) -> None:
    """Have the agent in the target, which was built as `library`, do at once what its arena asks for, whether or not Python runs there.

    Raises TargetError, HostError or OSError where that cannot be.
    """
    with ThreadPoolExecutor(1, "injector") as executor:
        executor.submit(_look, target, library).result()


def _look(target: Target, library: Descriptor) -> None:
    refuse_what_is_debugged(target.process)
    code, agent = loader(target), agent_functions(target, library)
    if not agent:
        raise TargetError(f"process {target.pid} has no agent")
    for candidate in blocked_threads(target, code):
        with suppress(NotStopped, NoRoom), Stopped(target.process, candidate.tid) as thread:
            if candidate.still(machine.registers_of(thread)):
                call(thread, target.memory, agent["pytrace_look"], (), code.sigreturn, _LOADING_ROOM, candidate.first)
                return
    # The main thread alone makes that call before 3.12. While it waits for another thread, which the agent sees, 3.11 would look for the call there for ever: at its
    # next function it comes back to the same instruction until somebody else wants the GIL.
    if target.python_version and target.python_version[:2] == (3, 11) and target.pid not in wanting_to_run(target):
        return
    with suppress(NotStopped, NoRoom):
        make_pending(target, agent["pytrace_look_pending"], 0, code, agent)


class _Attempt:
    """The routes to one session, tried until it has begun."""

    def __init__(self, target: Target, session: Session, started: Callable[[], bool], patience_s: float) -> None:
        self.target, self.session, self.started = target, session, started
        self.end = time.monotonic() + patience_s
        self.stopped_ns = 0
        self.waits_for_gil = False  # the library is in the target, and its thread is to begin

    def begin(self) -> Injection:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)  # of this thread: one of the target's waits for it
        try:
            refuse_what_is_debugged(self.target.process)
            self.loader = loader(self.target)
            self.warning = seccomp.look(self.target.process, self.loader.is_new)
            self.agent = agent_functions(self.target, self.session.library)
            self._refuse_what_has_no_room()
            while time.monotonic() < self.end:
                if not self.target.is_initialized():
                    time.sleep(_STARTING_S)
                    continue
                for route in (self._script, self._blocked_thread, self._pending_call):
                    with suppress(NotStopped, NoRoom):
                        done = route()
                        if done:
                            return replace(done, warning=self.warning)
                    self._refuse_a_failure()
                refuse_what_is_debugged(self.target.process)
        except (FileNotFoundError, ProcessLookupError):
            raise TargetError(f"process {self.target.pid} ended meanwhile") from None
        except PermissionError as error:
            raise HostError(f"process {self.target.pid} may not be changed by this user ({error}); run the command as root (sudo)") from None
        self._refuse_what_has_no_room()
        if self.waits_for_gil:
            raise TargetError(f"the agent did not get the GIL of process {self.target.pid} in time; try again when it runs Python code")
        if not self.target.is_initialized():
            raise TargetError(f"the interpreter of process {self.target.pid} is still starting, or ending already; try again when its program runs")
        others = ", or run other interpreters than its main one" if self.target.interpreters() > 1 else ""
        raise TargetError(
            f"process {self.target.pid} did not come to a place where the agent can begin (all of its threads are busy "
            f"in native code or deep in the kernel{others}); try again when it runs Python code"
        )

    def _script(self) -> Injection | None:
        """By PEP 768, where a thread is there that runs."""
        if self.agent or not pep768.is_possible(self.target):
            return None
        running = wanting_to_run(self.target)
        if not running:
            return None
        with pep768.script_pending(self.target, running, f"{self.session.path}/{SCRIPT}") as stop_ns:
            return Injection("PEP 768", stop_ns) if self._wait(_SAFE_POINT_S) else None

    def _blocked_thread(self) -> Injection | None:
        """In the first thread that waits in a harmless system call, and still does when it is stopped."""
        for candidate in blocked_threads(self.target, self.loader):
            stop_ns, course = self._load_in(candidate)
            if course is None:
                continue
            if not self.agent and course.returned and not is_loaded(self.target, self.session.inode):
                raise TargetError(
                    f"process {self.target.pid} cannot load {self.session.path}/agent.so: {why_not(self.target.process, course.refused)}"
                )
            self.waits_for_gil = True
            return Injection(f"a thread blocked in {candidate.name}", stop_ns) if self._wait(_GIL_S) else None
        return None

    def _load_in(self, candidate: Blocked) -> tuple[int, Course | None]:
        """How long the thread was stopped, in ns, and how the call went; None when it did not stand there any more."""
        with suppress(NotStopped, NoRoom), Stopped(self.target.process, candidate.tid) as thread:
            if candidate.still(machine.registers_of(thread)):
                arguments: tuple[int | bytes, ...]
                if self.agent:
                    function, arguments = self.agent["pytrace_begin"], (os.fsencode(self.session.path) + b"\0",)
                else:
                    function, arguments = self.loader.dlopen, (os.fsencode(f"{self.session.path}/agent.so") + b"\0", _RTLD_NOW)
                course = call(thread, self.target.memory, function, arguments, self.loader.sigreturn, _LOADING_ROOM, candidate.first)
                thread.release()
                return thread.stop_ns, course
        return 0, None

    def _pending_call(self) -> Injection | None:
        if not self.agent and is_loaded(self.target, self.session.inode):  # by an earlier one, which may go on: see make_pending()
            return Injection("a pending call of the main thread", self.stopped_ns) if self._wait(_SAFE_POINT_S) else None
        with pending_call(self.target, self.session.path, self.loader, self.agent) as stop_ns:
            self.stopped_ns = stop_ns
            return Injection("a pending call of the main thread", stop_ns) if self._wait(_SAFE_POINT_S) else None

    def _wait(self, seconds: float) -> bool:
        end = min(self.end, time.monotonic() + seconds)
        while not self.started():
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True

    def _refuse_what_has_no_room(self) -> None:
        if used_up := exhausted(self.target.process, self.session.arena_bytes):
            raise TargetError(f"the agent cannot begin in process {self.target.pid}: {used_up}")

    def _refuse_a_failure(self) -> None:
        if failure := self.session.failure():
            raise TargetError(f"process {self.target.pid} cannot load the agent: {failure}")
