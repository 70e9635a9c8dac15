"""Asks a process without rights to parse what a target wrote, and believes nothing of the answer but its shape.

workers/parsing.py is that process. It is a fresh interpreter rather than a fork of the tracer, which would hold the
whole memory and environment of the tracer: that takes 0.05 s of CPU, while the tracer itself imports; a request and
its answer take 0.1 ms. What comes back is JSON, of a bounded size and within a time, else the process
is killed and a new one asked the next time.

What stays in the tracer: numbers of a fixed size at known addresses (where the GIL is and who holds it, flags, what
injecting looks at), of which struct takes any bytes.
"""

import atexit
import importlib.util
import json
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, TypeVar

from pytrace_ebpf import self_command
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.parsing.shape import decode, encode
from pytrace_ebpf.record.process import shares
from pytrace_ebpf.record.process.memory import HasFileno

_MOST_ANSWER = 32 << 20  # bytes
_FAILURES, _MOST_KNOWN = 3, 4096  # failures after which a target is not tried again; targets whose failures are counted
_STARTS_S, _LONGER = 60.0, 10  # for which it may do nothing while it starts; so many times as long is waited at most for what waits for a core
_WORK_S = 60.0  # after so much of it a process is replaced: it has a limit on its CPU time
_CHUNK, _LONGEST = 1 << 20, 500  # bytes at a time; characters of a sentence
_HEAD = struct.Struct("<I")
_ASIDE = "it was put aside, since others wait"
Answer = TypeVar("Answer")


class UnansweredError(ValueError):
    """There is no answer: it did not come in time, was malformed, or the question is no longer asked after repeated failures."""


class Sandbox:
    """One such process, started when it is first asked, or by start(), and again where it ended."""

    def __init__(self, module: str, *packages: str) -> None:
        """`module`: its TASKS are what can be asked: name -> function of (what was given, descriptors) -> JSON values.

        `packages`: what it imports in addition to Python's own library; starting it raises ModuleNotFoundError where one is missing.
        """
        self._module, self._packages = module, packages
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._owner = 0  # a fork of this process has one of its own
        self._worked_s = 0.0
        self._failures: Counter[Hashable] = Counter()
        self._abandoned = self._put_aside = self._is_ready = False
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """Its process id, None where there is none now."""
        return self._child.pid if self._child and self._owner == os.getpid() else None

    def start(self) -> None:
        """Begin to start it, where that was not done: it imports meanwhile."""
        with self._lock, suppress(OSError):
            self._abandoned = False
            self._connect()

    def ask(
        self,
        task: str,
        given: Mapping[str, Any],
        files: Sequence[HasFileno],
        kind: type[Answer],
        seconds: float,
        of: Hashable = None,
        within: Sequence[AbstractContextManager[Any]] = (),
    ) -> Answer:
        """What `task` says of `files`, a value of type `kind`.

        `of`: the target to which a failure is attributed: after a few failures nothing of it is parsed any more. `within`: entered while it is asked. Raises
        ValueError, one sentence, for what cannot be parsed, and its subclass UnansweredError where there is no answer.
        """
        with self._lock, ExitStack() as entered:
            for each in within or (waiting.On("the process without rights that reads what programs wrote"),):
                entered.enter_context(each)
            if of is not None and self._failures[of] >= _FAILURES:
                raise UnansweredError("the process that reads such things has failed at it again and again")
            if self._abandoned:
                raise UnansweredError("the process that reads such things is asked no more")
            if self._worked_s > _WORK_S:
                self._end()
            self._put_aside = False
            try:
                self._await(self._connect())
            except (OSError, EOFError) as error:  # nothing can be opened or started just now, which is not attributed to a target
                self._end()
                if self._put_aside:
                    raise UnansweredError(_ASIDE) from None
                why = getattr(error, "strerror", None) or "it did not begin in time, or ended"
                raise UnansweredError(f"the process that reads such things cannot be started ({why})") from None
            before_s, in_vain, patience = shares.process_s(self.pid or 0), False, Patience(seconds, self.pid or 0)
            try:
                answer = json.loads(self._exchange(json.dumps([task, encode(given)]).encode(), files, patience))
                if "refused" not in answer:
                    return decode(kind, answer["value"])
                refused = str(answer["refused"])[:_LONGEST]
            except TimeoutError:
                in_vain, why = True, f"the process that reads such things had no answer in {seconds:g} s"
            except (OSError, EOFError):
                in_vain, why = True, "the process that reads such things ended meanwhile"
                if self._put_aside:
                    of, why = None, _ASIDE
            except (ValueError, TypeError, LookupError, RecursionError, MemoryError):
                why = "the process that reads such things answered nonsense"
            else:
                raise ValueError(printable(refused))
            finally:
                self._worked_s += patience.spent_s
                shares.add(patience.spent_s if in_vain else shares.process_s(self.pid or 0) - before_s)  # to whoever it was for
            self._end()
            if len(self._failures) >= _MOST_KNOWN:
                self._failures.clear()
            if of is not None:
                self._failures[of] += 1
            raise UnansweredError(why)

    def put_aside(self) -> None:
        """End it while another thread asks it, which has no answer now; that is not attributed to a target, and the next one has."""
        self._put_aside = True
        if (child := self._child) is not None and self._owner == os.getpid():
            child.kill()

    def abandon(self) -> None:
        """End it while others ask it, and let nobody have an answer from now on, until start()."""
        self._abandoned = True
        if (child := self._child) is not None and self._owner == os.getpid():
            child.kill()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody has an answer."""
        return self._abandoned

    def dismiss(self) -> None:
        """Begin to end it, which takes some milliseconds: close() waits for that. A later ask() starts a new one."""
        with self._lock:
            self._hang_up()

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._end()

    def _connect(self) -> socket.socket:
        if self._connection is not None and self._child is not None and self._owner == os.getpid() and self._child.poll() is None:
            return self._connection
        self._end()  # killed from outside, which is not attributed to a target
        for name in self._packages:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name=name)
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = self_command.start_worker("parsing", str(theirs.fileno()), self._module, files=[theirs.fileno()])
        ours.setblocking(False)
        self._connection, self._owner, self._worked_s, self._is_ready = ours, os.getpid(), 0.0, False
        return ours

    def _await(self, connection: socket.socket) -> None:
        """Until it has imported what it needs and given up its rights: on a busy host that takes longer than an answer, and is nobody's doing."""
        if not self._is_ready:
            _receive(connection, 1, Patience(_STARTS_S, self.pid or 0, starts=True))
            self._is_ready = True

    def _exchange(self, content: bytes, files: Sequence[HasFileno], patience: "Patience") -> bytes:
        connection = self._connect()
        request = memoryview(_HEAD.pack(len(content)) + content)
        patience.wait(connection, select.POLLOUT)
        sent = socket.send_fds(connection, [request[: _HEAD.size]], [file.fileno() for file in files])
        while sent < len(request):
            patience.wait(connection, select.POLLOUT)
            sent += connection.send(request[sent : sent + _CHUNK])
        (size,) = _HEAD.unpack(_receive(connection, _HEAD.size, patience))
        if size > _MOST_ANSWER:
            raise ValueError
        return _receive(connection, size, patience)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._child is not None and self._owner == os.getpid():
            self._child.kill()

    def _end(self) -> None:
        self._hang_up()
        if self._child is not None and self._owner == os.getpid():
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(1)
        self._child = None


class Patience:
    """So many seconds, in which what a process waits for a core does not count: on a busy host that is neither its fault nor that of what it reads.

    Nor does what it works, where it `starts`: a slow host is only slow.
    """

    def __init__(self, seconds: float, pid: int, starts: bool = False) -> None:
        self._seconds, self._pid, self._starts, self._began_s = seconds, pid, starts, time.monotonic()
        self._excused_s = self._excuse_s()

    @property
    def spent_s(self) -> float:
        """Of it so far."""
        took_s = time.monotonic() - self._began_s
        return max(took_s - max(self._excuse_s() - self._excused_s, 0.0), took_s / _LONGER)

    def _excuse_s(self) -> float:
        return shares.queued_s(self._pid) + (shares.process_s(self._pid) if self._starts else 0.0)

    def wait(self, connection: socket.socket, event: int) -> None:
        """Until the event comes. Raises TimeoutError."""
        poll = select.poll()
        poll.register(connection, event)
        while not poll.poll(1000 * max(self._seconds - self.spent_s, 0.0)):
            if self.spent_s >= self._seconds:
                raise TimeoutError


def _receive(connection: socket.socket, size: int, patience: Patience) -> bytes:
    content = bytearray()
    while len(content) < size:
        patience.wait(connection, select.POLLIN)
        more = connection.recv(min(size - len(content), _CHUNK))
        if not more:
            raise EOFError
        content += more
    return bytes(content)


class PerThread:
    """What `parsers` is, but for threads that begin with use_own() or use(): what is read for one of those keeps nobody else waiting."""

    def __init__(self, *words: str) -> None:
        self._words, self._own = words, threading.local()
        self._shared = Sandbox(*words)

    def use_own(self) -> Sandbox:
        """Ask one of its own in this thread from now on; whoever calls this closes it."""
        self.use(own := self.new())
        return own

    def new(self) -> Sandbox:
        """One more of the same; whoever calls this closes it."""
        return Sandbox(*self._words)

    def use(self, own: Sandbox) -> None:
        """Ask that one in this thread from now on."""
        self._own.sandbox = own

    def of_this_thread(self) -> Sandbox:
        """The one that this thread asks."""
        found: Sandbox = getattr(self._own, "sandbox", self._shared)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of_this_thread(), name)


parsers = PerThread("pytrace_ebpf.record.parsing.parsers", "capstone")
native_parsers = PerThread("pytrace_ebpf.record.native.parsers", "capstone", "cxxfilt")
searcher = Sandbox("pytrace_ebpf.record.cpython.encodable")  # by itself: NumPy takes longer to import than all that `parsers` needs
