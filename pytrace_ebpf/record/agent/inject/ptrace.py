"""One thread of another process, stopped for a moment: its registers, its signal mask, and its way on.

The kernel lets a stopped thread go, as it is, when the thread that stopped it ends: do it all in a thread of its own,
then nothing that goes wrong here holds the target longer than that.
"""

import ctypes
import os
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.process.pinned import Ended, Pinned

_CONT, _DETACH, _SYSCALL = 7, 17, 24
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT, _LISTEN = 0x4204, 0x4205, 0x4206, 0x4207, 0x4208
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_SECCOMP_GET_FILTER = 0x420C
_ENOENT = 2
_TRACESYSGOOD = 1
_EVENT_STOP = 128
_WALL = 0x40000000
_SIGTRAP = 5
_MOST_STATE = 1 << 15  # bytes of a set of registers
_STOPPING_S = 0.25
_SUSPENDED_S = 0.5  # what limits a program's CPU time (cpulimit) suspends it for less at a time
_LOOK_S = 0.005
_LETTING_GO_S = 2.0  # for a thread that did not stop when asked to, on an overloaded machine


class NotStopped(Exception):  # noqa: N818 - the usual term
    """The thread has ended, or did not stop in time. The caller decides what that means."""


class Suspended(TargetError):  # noqa: N818
    """The process is in the state T, and nobody continued it while it was waited for."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} is suspended (SIGSTOP or Ctrl-Z); continue it with `kill -CONT {pid}`")


class Stopped:
    """Thread `tid` of a process, stopped between `with` and its end; `stop_ns` then says how long.

    Where the process is suspended it stands as soon as somebody continues it. Entering raises Suspended where nobody does,
    TargetError when another debugger holds it, or it has become another program or another user's, HostError when this user
    may not stop it, NotStopped when it has ended or did not stop (it is deep in the kernel).
    What holds when it stands holds until it is let go: exec in another thread would end this one.
    """

    def __init__(self, process: Pinned, tid: int) -> None:
        self.process, self.pid, self.tid, self.stop_ns = process, process.pid, tid, 0
        self._mine, self._since = False, 0
        self._signal = 0  # the signal that it stopped for, not delivered yet

    def __enter__(self) -> Self:
        self._seize()
        try:
            self._since = time.monotonic_ns()
            self._stop()
            self._check()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def release(self, signal: int = 0) -> None:
        """Let it go on as its registers say, with the signal that stopped it."""
        if self._mine:
            self._mine = False
            if libc.ptrace(_DETACH, self.tid, None, signal):
                self._let_go()
            self.stop_ns += time.monotonic_ns() - self._since

    def register_set(self, note: int, needed: bool = True) -> bytes:
        """One of its sets of registers, by the type of note that a core dump has it in; b"" where it has none and none is `needed`."""
        buffer = ctypes.create_string_buffer(_MOST_STATE)
        span = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), _MOST_STATE)
        try:
            self._ptrace(_GETREGSET, note, ctypes.addressof(span))
        except HostError:
            if needed:
                raise
            return b""
        return buffer.raw[: span[1]]

    def set_register_set(self, note: int, content: bytes) -> None:
        """As it will go on."""
        buffer = ctypes.create_string_buffer(content, len(content))
        span = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), len(content))
        self._ptrace(_SETREGSET, note, ctypes.addressof(span))

    def blocked_signals(self) -> int:
        """Its signal mask; within a system call that has one of its own, that from before."""
        mask = ctypes.c_ulonglong()
        self._ptrace(_GETSIGMASK, 8, ctypes.addressof(mask))
        return mask.value

    def block_signals(self, mask: int) -> None:
        self._ptrace(_SETSIGMASK, 8, ctypes.addressof(ctypes.c_ulonglong(mask)))

    def seccomp_filters(self) -> list[bytes]:
        """Its filters, programs of classic BPF. Raises HostError where they may not be read."""
        found: list[bytes] = []
        while True:
            count = libc.ptrace(_SECCOMP_GET_FILTER, self.tid, len(found), None)
            if count < 0 and ctypes.get_errno() == _ENOENT:
                return found
            if count >= 0:
                program = ctypes.create_string_buffer(8 * count)  # struct sock_filter
                self._ptrace(_SECCOMP_GET_FILTER, len(found), ctypes.addressof(program))
                found.append(program.raw)
                continue
            raise HostError(f"the seccomp filter of process {self.pid} cannot be read ({os.strerror(ctypes.get_errno())})")

    def until_system_call(self, patience_s: float) -> int:
        """Let it run to the beginning or end of its next system call.

        Returns 0 there, or the signal that stopped it before: one that it cannot block.
        Raises NotStopped, after which it runs.
        """
        self._ptrace(_SYSCALL, 0, 0)
        status = self._wait(patience_s)
        signal, event = status >> 8 & 0xFF, status >> 16
        return 0 if signal == _SIGTRAP | 0x80 or (event == _EVENT_STOP and signal == _SIGTRAP) else signal

    def stop_on_its_way_out(self) -> None:
        """From the beginning of a system call that is not to be made, to where it would go on behind the kernel. Raises NotStopped."""
        self._ptrace(_INTERRUPT, 0, 0)
        self._ptrace(_CONT, 0, 0)
        self._wait(_STOPPING_S)

    def stop_again(self, patience_s: float) -> None:
        """Stop it in whatever it does. Raises NotStopped."""
        self._ptrace(_INTERRUPT, 0, 0)
        self._wait(patience_s)

    def _check(self) -> None:
        """That it is a thread of the process that was looked at: its number may have been given to another one."""
        try:
            self.process.read(f"task/{self.tid}/stat")
        except OSError:
            raise NotStopped from None
        self.process.check()

    def _let_go(self) -> None:
        """It runs, and the kernel lets go of what stands. Where it does not come to that, the end of our own thread does."""
        with suppress(NotStopped, HostError):
            self.stop_again(_LETTING_GO_S)
            libc.ptrace(_DETACH, self.tid, None, self._signal)

    def _seize(self) -> None:
        if libc.ptrace(_SEIZE, self.tid, None, _TRACESYSGOOD) == 0:
            self._mine = True
            return
        number = ctypes.get_errno()
        if number == 3:  # ESRCH
            raise NotStopped
        refuse_what_is_debugged(self.process)
        if self.process.status().get("TracerPid") == str(threading.get_native_id()):  # it is deep in the kernel since, where it cannot be let go
            raise NotStopped
        if self.process.has_ended():
            raise Ended(f"process {self.pid} ended while it was looked at")
        raise HostError(
            f"process {self.pid} may not be stopped by this user ({os.strerror(number)}); "
            "run the command as root (sudo), in a container with the capability SYS_PTRACE"
        )

    def _stop(self) -> None:
        self._ptrace(_INTERRUPT, 0, 0)
        end = time.monotonic() + _STOPPING_S
        while True:
            status = self._wait(end - time.monotonic())
            signal, event = status >> 8 & 0xFF, status >> 16
            if event == _EVENT_STOP and signal == _SIGTRAP:
                return
            if event == _EVENT_STOP:
                self._await_continuing()
                return
            self._ptrace(_CONT, 0, signal)  # a signal that was pending: it is delivered

    def _await_continuing(self) -> None:
        """It stays suspended, as if nobody held it, until somebody continues it: there it stops. Raises Suspended."""
        end = time.monotonic() + _SUSPENDED_S
        while True:
            self._ptrace(_LISTEN, 0, 0)
            try:
                status = self._wait(end - time.monotonic())
            except NotStopped:
                if not self._mine:  # it has ended
                    raise
                raise Suspended(self.pid) from None
            if status >> 16 == _EVENT_STOP and status >> 8 & 0xFF == _SIGTRAP:
                self._since = time.monotonic_ns()
                return

    def _wait(self, patience_s: float) -> int:
        """The status of its next stop. Spins, for a stop is a few microseconds away while the target stands still."""
        end = time.monotonic() + patience_s
        for turn in range(1 << 30):
            try:
                got, status = os.waitpid(self.tid, os.WNOHANG | _WALL)
            except ChildProcessError:
                got, status = self.tid, 0
            if got and os.WIFSTOPPED(status):
                signal = status >> 8 & 0xFF
                self._signal = 0 if status >> 16 or signal == _SIGTRAP | 0x80 else signal
                return status
            if got:
                self._mine = False
                raise NotStopped
            if time.monotonic() > end:
                break
            time.sleep(0 if turn < 500 else 0.0005)
        raise NotStopped

    def _ptrace(self, request: int, address: int, data: int) -> None:
        if libc.ptrace(request, self.tid, address, data) < 0:
            number = ctypes.get_errno()
            if number == 3:  # ESRCH: killed in the stop
                raise NotStopped
            raise HostError(f"the kernel refuses to work on the stopped process {self.pid} ({os.strerror(number)})")


def refuse_what_is_debugged(process: Pinned) -> None:
    """Raise TargetError where the kernel would not let us stop a process, or it would never come to the agent."""
    pid, fields = process.pid, process.status()
    tracer = int(fields.get("TracerPid", "0"))
    if tracer not in (0, threading.get_native_id()):
        raise TargetError(f"process {pid} is held by a debugger (process {tracer}); end that one first")
    if "shstk" in fields.get("x86_Thread_features", ""):
        raise TargetError(f"process {pid} has a shadow stack, so it can only be traced from its start; use `pytrace-ebpf run`")
    end = time.monotonic() + _SUSPENDED_S
    while _is_suspended(before := fields):
        if time.monotonic() > end:
            raise Suspended(pid)
        time.sleep(_LOOK_S)
        fields = process.status()
        if any(fields.get(name) != before.get(name) for name in ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")):
            return  # it ran meanwhile


def _is_suspended(fields: dict[str, str]) -> bool:
    return fields.get("State", "").startswith("T")
