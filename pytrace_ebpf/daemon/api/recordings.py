"""The processes of the daemon's that record for those who asked: one for each traced process, user and set of options; requests that agree share it.

The daemon itself neither reads what a user asks for nor looks at the process that is asked for. It hands the connection on, and waits.
"""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from pytrace_ebpf.daemon.api import at_work
from pytrace_ebpf.daemon.api.at_work import AtWork
from pytrace_ebpf.errors import HostError

Key = tuple[object, ...]
MOST_MESSAGE = 256 << 10  # bytes between the daemon and such a process: a request and what the daemon says of who asks
ENDING_S = 30.0  # that a recording may do nothing for while it finishes its traces
_BUFFER = 1 << 20
_NOT_HANDED_ON = ("SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND")  # who started the daemon is not who asks

Answer = Literal["taken", "other", "gone"]


class Recordings:
    """Those that run."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command`: words that start such a process; the number of its socket is added."""
        self._command = list(command)
        self._lock = threading.Lock()
        self._running: dict[Key, list[_Recording]] = {}

    def serve(self, key: Key, message: Mapping[str, Any], descriptors: Sequence[int], seconds: float | None) -> bool:
        """Have a request answered by such a process, and wait until it has been; False where that process ended before, or hung.

        `key`: only requests of the same key may be recorded together. `seconds`: that a recording may last, once it has begun. A process that goes on for
        longer, or hangs, is killed. Raises HostError where none can be started.
        """
        tried: set[_Recording] = set()
        while (recording := self._next(key, tried)) is not None:
            tried.add(recording)
            if recording.ask(message, descriptors) == "taken":
                return recording.wait(message["id"], seconds)
        try:
            recording = _Recording(self._command, lambda ended: self._forget(key, ended))
        except OSError as error:
            raise HostError(f"the daemon cannot begin one more recording ({error.strerror}); try again later") from error
        with self._lock:
            self._running.setdefault(key, []).append(recording)
        return recording.ask(message, descriptors) == "taken" and recording.wait(message["id"], seconds)

    def _next(self, key: Key, tried: "set[_Recording]") -> "_Recording | None":
        with self._lock:
            return next((each for each in self._running.get(key, ()) if each not in tried), None)

    def _forget(self, key: Key, ended: "_Recording") -> None:
        with self._lock:
            left = [each for each in self._running.get(key, ()) if each is not ended]
            if left:
                self._running[key] = left
            else:
                self._running.pop(key, None)

    def pids(self) -> list[int]:
        """Their processes."""
        with self._lock:
            return [each.pid for several in self._running.values() for each in several]

    def end(self) -> None:
        """Have all of them finish their traces."""
        for recording in self._all():
            recording.hang_up()

    def close(self) -> None:
        """Have all of them finish their traces, and wait for that."""
        running = self._all()
        for recording in running:
            recording.hang_up()
        ending = [AtWork(recording.pid, ENDING_S) for recording in running]
        for recording, watched in zip(running, ending, strict=True):
            recording.end(watched)

    def _all(self) -> "list[_Recording]":
        with self._lock:
            return [each for several in self._running.values() for each in several]


class _Recording:
    """One such process. It ends when the daemon lets go of its socket, however that ends."""

    def __init__(self, command: Sequence[str], forget: "Any") -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._forget = forget
        self._lock = threading.Condition()
        self._answers: dict[int, str] = {}
        self._gone = False
        for side in (self._socket, theirs):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
        with theirs:
            self._child = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd="/", start_new_session=True,
                env=environment,
            )  # fmt: skip
        threading.Thread(target=self._listen, name="recording", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    def ask(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> Answer:
        """Hand a request on; "other": it cannot be served by this recording, "gone": nor by anything that this process does."""
        with suppress(OSError):
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))
            self._works_until(lambda: message["id"] in self._answers, at_work.IDLE_S)
            answer = self._answers.get(message["id"])
            return "gone" if answer is None else "other" if answer == "other" else "taken"
        return "gone"

    def wait(self, number: int, seconds: float | None) -> bool:
        """Until that request has been answered; False where it never will be."""

        def has_ended() -> bool:
            return self._answers.get(number) == "ended"

        if seconds is None:
            with self._lock:
                self._lock.wait_for(lambda: self._gone or has_ended())
        else:
            self._works_until(lambda: self._answers.get(number) in ("begun", "ended"), at_work.IDLE_S)
            with self._lock:
                self._lock.wait_for(lambda: self._gone or has_ended() or self._answers.get(number) != "begun", seconds)
            self._works_until(has_ended, ENDING_S)
        with self._lock:
            answered, gone = self._answers.pop(number, None) == "ended", self._gone
        if not answered and not gone:
            self._child.kill()
        return answered

    def _works_until(self, done: Callable[[], bool], idle_s: float) -> None:
        """Wait until something is so, the process is gone, or it hangs."""
        watched = AtWork(self.pid, idle_s)
        while True:
            with self._lock:
                if self._lock.wait_for(lambda: self._gone or done(), at_work.LOOK_S):
                    return
            if watched.hangs():
                return

    def _listen(self) -> None:
        with suppress(OSError, ValueError, KeyError):
            while content := self._socket.recv(MOST_MESSAGE):
                said = json.loads(content)
                with self._lock:
                    self._answers[said["id"]] = said["is"]
                    self._lock.notify_all()
        self._forget(self)
        with self._lock:
            self._gone = True
            self._lock.notify_all()
        at_work.wait(self._child, AtWork(self.pid, ENDING_S))
        self._socket.close()

    def hang_up(self) -> None:
        """Have it finish."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def end(self, watched: AtWork) -> None:
        """After hang_up(): wait for it."""
        at_work.wait(self._child, watched)
