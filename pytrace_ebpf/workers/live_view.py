"""The process that cli/top.py starts: it records for the live view, to which what is seen goes as pictures, and does what that asks for."""

import json
import os
import platform
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytrace_ebpf
from pytrace_ebpf.errors import PytraceError, TargetError
from pytrace_ebpf.options import recording
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel import host
from pytrace_ebpf.record.parsing.shape import decode
from pytrace_ebpf.record.process import descriptors
from pytrace_ebpf.record.rights import capabilities
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE
from pytrace_ebpf.units import plural
from pytrace_ebpf.view.top.feed import SAVED, Ended, News, Said, line_of

if TYPE_CHECKING:
    from pytrace_ebpf.record.live.sink import Closed
    from pytrace_ebpf.record.session import Session, Status

_ALL = "."  # fits every command line
_PICTURE_S = 0.8  # from one to the next, and as long as the recorders sleep meanwhile: about a second
_MOST_WAITING = 2  # pictures that nobody took yet: of more the new ones are dropped
_MOST_SAID = 1000  # likewise, of sentences
_PATIENCE_S = 5.0  # for the view to take the last ones; for a recording of exact calls to be finished


@dataclass(frozen=True)
class _Save:
    """Exact calls that are wanted."""

    pids: tuple[int, ...]
    seconds: int
    directory: str


@dataclass(frozen=True)
class _Request:
    """What the view asks for."""

    save: _Save


class Watching:
    """One connection to a view, until it is closed at the other end or what is watched has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._requests = connection, b""
        self._out: queue.Queue[bytes | None] = queue.Queue()
        self._writer = threading.Thread(target=self._write, name="pictures", daemon=True)
        self._saving: list[subprocess.Popen[str]] = []
        self._gone = False
        self._pids: Callable[[], Collection[int]] = tuple  # what is watched
        self._spent_ns = 0

    def run(self) -> None:
        """Record as the first line says, which comes by the connection."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            if "CAP_SYS_ADMIN" in host.capabilities():  # else it has few anyway; before there are threads
                capabilities.keep(capabilities.LOADING)
            self._writer.start()
            waiting.tell(lambda sentence: self._say(Said(sentence)) if self._out.qsize() < _MOST_SAID else None)
            ended = self._record(json.loads(self._first_line()))
        except PytraceError as error:
            ended = Ended(str(error), error.exit_code)
        except Exception as error:  # the view says what went wrong: nobody else listens
            ended = Ended(f"the process that records failed: {type(error).__name__}: {error}", 1)
        self._stop_saving()
        self._say(ended)
        self._out.put(None)
        with suppress(RuntimeError):  # it was not started
            self._writer.join(_PATIENCE_S)

    # -- recording -----------------------------------------------------------------

    def _record(self, wanted: dict[str, Any]) -> Ended:
        descriptors.allow_all()
        recording.prepare(SAMPLES_ALONE)
        from pytrace_ebpf.analyze.live.live_window import Window
        from pytrace_ebpf.record.options import Options
        from pytrace_ebpf.record.session import Session

        match = wanted["match"] or (None if wanted["pids"] else _ALL)
        options = Options(None, SAMPLES_ALONE, sample=wanted["hz"], follow=wanted["follow"], match=match, lasting=True, segment_s=_PICTURE_S)
        window = Window(wanted["last_s"], platform.machine(), round(1e9 / wanted["hz"]))
        self._pids = lambda: window.pids
        session = Session(options, sys.argv, lambda closed: self._take(closed, window, session))
        try:
            try:
                begun = session.start(*wanted["pids"])
            except TargetError as error:
                raise TargetError("no Python process is running here that can be watched") if match == _ALL else error from None
            self._say(Said(f"sampling {plural(len(begun), 'process')}; the first picture comes in a second"))
            session.run(self._is_over, self._progress)
            if not self._gone:
                session.finish()
        finally:
            session.close()
        return Ended("" if self._gone else session.ended_early or "what was watched has ended")

    def _take(self, closed: "Closed", window: Any, session: "Session") -> None:
        spent_ns = time.process_time_ns() + session.sampling_ns
        window.take(closed.start_ns, closed.end_ns, closed.tables, spent_ns - self._spent_ns if self._spent_ns else None)
        self._spent_ns = spent_ns
        if self._out.qsize() < _MOST_WAITING:
            self._say(window.snapshot())

    def _progress(self, status: "Status") -> None:
        for sentence in status.said if self._out.qsize() < _MOST_SAID else ():
            self._say(Said(sentence))

    # -- the connection ------------------------------------------------------------

    def _say(self, news: News) -> None:
        self._out.put(line_of(news).encode() + b"\n")

    def _write(self) -> None:
        with suppress(OSError):
            while (line := self._out.get()) is not None:
                self._connection.sendall(line)

    def _first_line(self) -> bytes:
        while b"\n" not in self._requests:
            if not (read := self._connection.recv(1 << 16)):
                break
            self._requests += read
        line, _, self._requests = self._requests.partition(b"\n")
        return line

    def _is_over(self) -> bool:
        """Whether the view is gone; what it asked for is begun."""
        with suppress(OSError):
            while not self._gone and select.select([self._connection], [], [], 0)[0]:
                read = self._connection.recv(1 << 16)
                self._gone = not read
                self._requests += read
        *lines, self._requests = self._requests.split(b"\n")
        for line in lines:
            self._save(decode(_Request, json.loads(line)).save)
        self._saving = [each for each in self._saving if each.poll() is None]
        return self._gone

    # -- exact calls ---------------------------------------------------------------

    def _save(self, wanted: "_Save") -> None:
        """Record these processes by a command of its own, as a user would."""
        pids = [pid for pid in wanted.pids if pid in self._pids()]
        if not pids:
            self._say(Said("what was to be recorded has ended"))
            return
        path = [str(Path(pytrace_ebpf.__file__).parents[1]), *sys.path]
        words = ["attach", *map(str, pids), "--duration", str(wanted.seconds), f"--output={wanted.directory}", "--quiet"]
        # -P: nothing is imported from the directory in which somebody was.
        command = [sys.executable, "-P", "-s", "-m", "pytrace_ebpf", *words]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
            env=os.environ | {"PYTHONPATH": ":".join(path)},
        )  # fmt: skip
        self._saving.append(child)
        threading.Thread(target=self._await, args=(child, wanted.directory), daemon=True).start()

    def _await(self, child: "subprocess.Popen[str]", directory: str) -> None:
        _, said = child.communicate()
        lines = said.strip().splitlines()
        self._say(Said(lines[-1] if child.returncode and lines else f"{SAVED}{directory}: pytrace-ebpf report {directory}"))

    def _stop_saving(self) -> None:
        """Have what was begun finished now."""
        for child in self._saving:
            child.send_signal(signal.SIGTERM)
        for child in self._saving:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_PATIENCE_S)


def main(connection: str) -> None:
    """What is wanted comes by this descriptor, a socket."""
    Watching(socket.socket(fileno=int(connection))).run()
