"""Start a program so that it stands still at its first instruction until the probes are on it.

The child asks to be traced by ptrace, so the kernel stops it at the end of exec;
it is let go as soon as it is a Python with its probes attached. Should the tracer
die meanwhile, the kernel lets it go.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.rights.user import callers_environment, invoking_user

_TRACEME, _CONT, _DETACH, _SETOPTIONS = 0, 7, 17, 0x4200
_SYSCALL = 24
_TRACE_EXEC, _EVENT_EXEC = 0x10, 4
_STEPS = 4000  # more than any dynamic loader needs


class Launched:
    """A started child of this process.

    `on_exec(launched)` is called while it stands at its first instruction, at each exec
    until it returns True: then it is let go for good.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], on_exec: Callable[["Launched"], bool]) -> None:
        """`environment`: variables to set in addition to those of this process."""
        self._on_exec = on_exec
        self.held = True  # still under ptrace
        self.status: int | None = None  # wait status, once it has ended
        self.pid = _fork(command, environment)
        self.end = _end_of(self.pid)
        libc.ptrace(_SETOPTIONS, self.pid, None, _TRACE_EXEC)
        self._at_exec()

    def step_until(self, condition: Callable[[], bool]) -> bool:
        """Run the held child from system call to system call until `condition()`; False if it never came true.

        For the dynamic loader's work: a few hundred stops at most.
        """
        passed_on = 0
        for _ in range(_STEPS):
            libc.ptrace(_SYSCALL, self.pid, None, passed_on)
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                self.status, self.held = status, False
                return False
            passed_on = 0 if os.WSTOPSIG(status) == signal.SIGTRAP else os.WSTOPSIG(status)
            if condition():
                return True
        return False

    def poll(self) -> None:
        """React to what happened to the child since the last call; sets `status` when it has ended."""
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return
            if not os.WIFSTOPPED(status):
                self.status = status
            elif status >> 16 == _EVENT_EXEC:
                self._at_exec()
            else:
                libc.ptrace(_CONT, self.pid, None, os.WSTOPSIG(status))

    def let_run(self) -> None:
        """Do not call on_exec any more: let it go at its next exec."""
        self._on_exec = lambda _: True

    def release(self) -> None:
        """Let the child go, whatever it is."""
        if self.held:
            self.held = False
            libc.ptrace(_DETACH, self.pid, None, None)

    @property
    def exit_code(self) -> int:
        """The program's exit code as a shell gives it: 128 + the signal's number where one killed it."""
        return _exit_code(self.status)

    def _at_exec(self) -> None:
        try:
            done = self._on_exec(self)
        except BaseException:  # this program has not run an instruction: it must not run untraced
            os.kill(self.pid, signal.SIGKILL)
            _, self.status = os.waitpid(self.pid, 0)
            self.held = False
            raise
        if done:
            self.release()
        elif self.held:
            libc.ptrace(_CONT, self.pid, None, None)


class Started:
    """A started child of this process where nothing but its start is to be caught: the same interface, without ptrace.

    `on_start(started)` is called when the process is there and has not become the program yet.
    """

    held = False

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], on_start: Callable[["Started"], object]) -> None:
        """`environment`: variables to set in addition to those of this process."""
        self.status: int | None = None
        self.pid, go, failure = _fork_waiting(command, environment, lambda: None)
        self.end = _end_of(self.pid)
        try:
            on_start(self)
        except BaseException:
            os.close(go)  # it ends without having become the program
            raise
        os.write(go, b"g")
        os.close(go)
        _raise_failure(command, failure)

    def poll(self) -> None:
        """Set `status` when the child has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None

    def let_run(self) -> None:
        """Nothing holds it."""

    def release(self) -> None:
        """Nothing holds it."""

    @property
    def exit_code(self) -> int:
        """The program's exit code as a shell gives it."""
        return _exit_code(self.status)


def _end_of(pid: int) -> Descriptor | None:
    """What is readable when a child has ended; None where a container forbids to ask."""
    with suppress(OSError):
        return Descriptor(os.pidfd_open(pid))
    return None


def _exit_code(status: int | None) -> int:
    code = os.waitstatus_to_exitcode(status or 0)
    return 128 - code if code < 0 else code


def _fork(command: Sequence[str], environment: Mapping[str, str]) -> int:
    pid, go, failure = _fork_waiting(command, environment, lambda: libc.ptrace(_TRACEME, 0, None, None))
    os.write(go, b"g")
    os.close(go)
    try:
        _raise_failure(command, failure)  # reads until exec closes the pipe
    finally:
        os.waitpid(pid, 0)  # stopped at the end of exec, or ended without
    return pid


def _fork_waiting(command: Sequence[str], environment: Mapping[str, str], before_exec: Callable[[], object]) -> tuple[int, int, int]:
    """(pid, pipe, pipe): the child becomes the program when a byte is written to the first; the second says why not."""
    user, callers = invoking_user(), callers_environment()
    failure, report = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid:
        os.close(report)
        os.close(wait)
        return pid, go, failure
    try:
        os.close(failure)
        os.close(go)
        _restore_signals()
        if user is not None:
            os.initgroups(user.pw_name, user.pw_gid)
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            if callers is None:
                os.environ |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
            else:
                os.environ.clear()
                os.environ |= callers
        os.environ |= environment
        if os.read(wait, 1):
            before_exec()
            os.execvp(command[0], list(command))
    except OSError as error:
        os.write(report, (error.strerror or "").encode())
    finally:
        os._exit(127)


def _restore_signals() -> None:
    """As our caller has them: two are ignored by Python's own doing, and of those that we catch exec itself lets go, but one may come before that."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _raise_failure(command: Sequence[str], failure: int) -> None:
    with os.fdopen(failure, "rb") as pipe:
        reason = pipe.read().decode()  # ends empty when exec closes the pipe
    if reason:
        raise TargetError(f"cannot run {command[0]}: {reason}")
