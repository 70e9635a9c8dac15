"""The process that records for those who asked the daemon: started by it for one traced process and one user.

It gives up what it does not need before it looks at anything, reads what was asked for, and looks at the process with no more rights than who
asked has over it. Requests that ask for the same join the recording. It ends with the last of them, or when the daemon lets go.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytrace_ebpf.cli import main as command_line
from pytrace_ebpf.cli import request as of_request
from pytrace_ebpf.daemon.api import protocol
from pytrace_ebpf.daemon.api.peer import Presence, readable
from pytrace_ebpf.daemon.api.recordings import MOST_MESSAGE
from pytrace_ebpf.errors import HostError, PytraceError, TargetError, UsageError
from pytrace_ebpf.options import option_rules, recording
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.rights import capabilities, requester, user

if TYPE_CHECKING:
    from pytrace_ebpf.record.output.shared import Part
    from pytrace_ebpf.record.process.pinned import Pinned
    from pytrace_ebpf.record.session import Session, Status

_TOGETHER = 16  # requests that share a recording
_ANSWER_S = 0.5
_OWN = ("pid", "duration", "output", "quiet", "socket", "words", "run_command", "of_command")  # of a request: others may differ in these
_CHECK_S = 0.2  # a process that becomes another is no longer recorded so long after
_SAID = 20  # sentences at the end of a recording
_EXPENDABLE = "800"  # to be ended where memory runs short, before what it traces and before the daemon, whose unit has 500


class Request:
    """One who asked: the connection, what is recorded for it, and until when."""

    def __init__(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self.message = message
        self.number = int(message["id"])
        self.connection = socket.socket(fileno=descriptors[0])
        self.directory = descriptors[1]
        self._presence = Presence(self.connection)
        self.part: Part | None = None
        self.since, self.until = time.monotonic(), float("inf")
        self.has_begun = False
        self.args = argparse.Namespace()
        self._saying = threading.Lock()

    def read(self) -> None:
        """Take in what is asked for. Raises UsageError."""
        try:
            self.args = args = command_line.parser([of_request.NAME]).parse_args(command_line.renamed(self.message["words"]))
        except SystemExit:  # --help, --version
            raise UsageError("what is asked for is no trace") from None
        if getattr(args, "run_command", None) is not of_request.run or args.pid != self.message["pid"]:
            raise UsageError("what is asked for is no trace of that process")
        of_request.check(args)
        if args.output is not None and args.output != Path(self.message.get("output", args.output)):
            raise UsageError("--output has no effect with another directory than the one that was handed over; leave it out")
        if (longest := self.message.get("longest_s")) is not None:
            _refuse_what_is_roots(args, longest, self.message["options"])
            args.no_follow = True  # what it starts may become another user's at any moment

    def agrees_with(self, other: "Request") -> bool:
        """Whether one recording serves both."""
        mine, its = ({name: value for name, value in vars(each.args).items() if name not in _OWN} for each in (self, other))
        return mine == its

    @property
    def argv(self) -> list[str]:
        """What was asked for, as it was typed."""
        return ["pytrace-ebpf", *self.message["words"]]

    def new_part(self) -> "Part":
        """The trace that it is to have."""
        from pytrace_ebpf.record.output.directory import Handed
        from pytrace_ebpf.record.output.shared import Part

        self.part = Part(Handed(self.directory, Path(self.message["output"])), recording.options(self.args), self.argv)
        return self.part

    def begin(self) -> None:
        """What is recorded from now on is for it."""
        self.since = time.monotonic()
        self.until = self.since + self.args.duration
        self.has_begun = True

    def say(self, said: dict[str, Any], seconds: float = 0) -> None:
        """Send something to who asked, where that one takes it."""
        with self._saying:
            protocol.send(self.connection, said, seconds)

    def has_enough(self) -> bool:
        """Whether the time is over, or who asked wants it to end or is gone."""
        return time.monotonic() >= self.until or readable(self.connection.fileno()) or self._presence.is_gone

    def close(self) -> None:
        """Let go of it."""
        self._presence.close()
        self.connection.close()
        os.close(self.directory)


def _refuse_what_is_roots(args: argparse.Namespace, longest_s: float, allowed: list[str]) -> None:
    for name in vars(args):
        option = option_rules.flag(name)[2:]
        if name not in ("pid", "socket", "words", "run_command", "of_command") and option not in allowed and option_rules.given(args, name):
            raise UsageError(f"the daemon's configuration does not let users give --{option} ([requests] options)")
    if args.duration > longest_s:
        raise UsageError(f"the daemon's configuration lets users trace {longest_s:g} s at most ([requests] longest_s); give a shorter --duration")


class Serving:
    """One recording and those who share it."""

    def __init__(self, control: socket.socket) -> None:
        """`control`: of the daemon's, at which requests come."""
        self._control = control
        self._requests: list[Request] = []
        self._session: Session | None = None
        self._pinned: Pinned | None = None
        self._check_at = 0.0
        self._sentences: list[str] = []
        self._is_hung_up = False

    def run(self) -> None:
        """Serve the first request, and those that join it."""
        if (first := self._receive()) is None:
            return
        self._report(first, "taken")
        self._requests.append(first)
        waiting.tell(self._say_what_waits)
        try:
            self._record(first)
            for request in list(self._requests):
                self._end(request)
        except PytraceError as error:
            for request in list(self._requests):
                self._end(request, error)

    def _record(self, first: Request) -> None:
        _become(first.message)
        first.read()
        recording.prepare(option_rules.source(first.args))
        from pytrace_ebpf.record.session import Session

        self._pinned = _pinned(first.args.pid)
        options = replace(recording.options(first.args), neighbours=not first.message["peer"][0])
        self._session = session = Session(options, first.argv, first=first.new_part())
        try:
            begun = session.start(first.args.pid)
            self._recheck(session)
            if first.message["peer"][0]:  # root may have asked for what the process starts, too
                capabilities.keep(capabilities.RECORDING)
            first.say({"begun": [[each.pid, each.source, each.warning] for each in begun], "said": session.status().said})
            self._begin(first)
            session.run(self._stop, self._show)
            session.finish()
            self._sentences += session.status().said
        finally:
            session.close()

    def _say_what_waits(self, sentence: str) -> None:
        """To all who asked; what was done to end a wait stands in the daemon's log, too."""
        for request in list(self._requests):
            with suppress(OSError):  # it has gone
                request.say({"waiting": sentence})
        if not sentence.startswith(waiting.SAYS):
            print(printable(sentence), file=sys.stderr, flush=True)

    def _recheck(self, session: "Session") -> None:
        """It is the process that was looked at, and may be traced still, now that it is recorded. Raises TargetError."""
        assert self._pinned is not None
        try:
            self._pinned.check()
        except TargetError:
            session.abandon()
            raise

    # -- while it is recorded ------------------------------------------------------

    def _stop(self) -> bool:
        assert self._session is not None and self._pinned is not None
        self._admit()
        for request in list(self._requests):
            part = request.part
            assert part is not None
            if part.error is not None or part.is_whole:
                self._end(request, part.error)
            elif part.recording and not request.has_begun:
                self._begin(request)
                request.say({"begun": [], "said": [f"joined the recording of process {request.args.pid}, which goes on already"]})
            elif not part.wants_end and (self._is_hung_up or request.has_enough()):
                part.wants_end = True
                self._session.cut_soon()
        if self._became_anothers():
            return True
        return all(request.part is not None and request.part.wants_end for request in self._requests)

    def _begin(self, request: Request) -> None:
        request.begin()
        self._report(request, "begun")  # the time that it may last is counted from now on

    def _became_anothers(self) -> bool:
        """Whether the process is no longer what was asked for, or none that may be traced; with a sentence for the end."""
        assert self._pinned is not None
        if time.monotonic() < self._check_at or self._pinned.has_ended():
            return False
        self._check_at = time.monotonic() + _CHECK_S
        try:
            self._pinned.check()
        except TargetError as error:
            self._sentences.append(f"the recording ended early: {error}")
            return True
        return False

    def _admit(self) -> None:
        """Take in requests that came meanwhile."""
        while not self._is_hung_up and readable(self._control.fileno()):
            request = self._receive()
            if request is None:
                self._is_hung_up = True
                return
            try:
                request.read()
            except PytraceError as error:
                self._report(request, "taken")
                request.say(protocol.refusal(error), _ANSWER_S)
                self._report(request, "ended")
                request.close()
                continue
            first = self._requests[0] if self._requests else None
            assert self._session is not None and self._pinned is not None
            if first is None or len(self._requests) >= _TOGETHER or self._pinned.has_ended() or not request.agrees_with(first):
                self._report(request, "other")
                request.close()
                continue
            self._report(request, "taken")
            self._session.join(request.new_part())
            self._requests.append(request)

    def _show(self, status: "Status") -> None:
        self._sentences = [*self._sentences, *status.said][:_SAID]
        for request in self._requests:
            if not request.has_begun:  # who asked waits to hear that first
                continue
            request.say({"progress": self._figures_of(request)})

    def _figures_of(self, request: Request) -> dict[str, Any]:
        """The fields of a Status, of this one's trace."""
        counts = request.part.counts if request.part else {}
        lost = sum(request.part.lost.values()) if request.part else 0
        seconds = time.monotonic() - request.since
        return {"seconds": seconds, "calls": counts.get("call", 0), "sched": counts.get("sched", 0), "samples": counts.get("sample", 0), "lost": lost}

    def _end(self, request: Request, error: PytraceError | None = None) -> None:
        """Give the last answer."""
        part = request.part
        if error is None and part is not None and part.failed:
            error = HostError(f"{part.full}; what was recorded until then is in {request.message['output']}")
        if error is None:
            full = [f"the recording ended early: {part.full}"] if part is not None and part.full else []
            request.say({"code": 0, "result": {"progress": self._figures_of(request), "said": [*self._sentences, *full]}}, _ANSWER_S)
        else:
            request.say(protocol.refusal(error), _ANSWER_S)
        self._requests.remove(request)
        self._report(request, "ended")
        request.close()

    # -- the daemon ----------------------------------------------------------------

    def _receive(self) -> Request | None:
        """The next request; None where the daemon is gone, or lets go."""
        content, descriptors, _, _ = socket.recv_fds(self._control, MOST_MESSAGE, 2)
        return Request(json.loads(content), descriptors) if content else None

    def _report(self, request: Request, what: str) -> None:
        with suppress(OSError):
            self._control.send(json.dumps({"id": request.number, "is": what}).encode())


def _pinned(pid: int) -> "Pinned":
    """That process. Raises TargetError also for one into which not even the daemon may look: that is about the process, not about this host."""
    from pytrace_ebpf.record.process.target import NoRoom, pinned

    try:
        return pinned(pid)
    except NoRoom:
        raise
    except HostError:
        raise TargetError(f"process {pid} may be looked into neither by you nor by the daemon, so it cannot be traced") from None


def _become(message: dict[str, Any]) -> None:
    """Look at what the one who asked may look at, and write with that one's rights, from now on."""
    uid, gid, groups = message["peer"]
    requester.record_only_for(requester.Requester(uid, gid, tuple(groups), message["within_ptrace_scope"]))
    if message["caller"] is not None:
        uid, gid, groups = message["caller"]
        user.serve(user.Caller(uid, gid, tuple(groups), f"user {uid}, who asked"))


def main(connection: str) -> None:
    """Serve requests that the daemon hands on by this descriptor, a socket."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # systemd sends it to all; the daemon lets go when it ends
        signal.signal(ignored, signal.SIG_IGN)
    capabilities.keep(capabilities.LOADING)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_EXPENDABLE)
    with socket.socket(fileno=int(connection)) as daemons:
        os.set_inheritable(daemons.fileno(), False)
        Serving(daemons).run()
