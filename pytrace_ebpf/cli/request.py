"""Have the daemon trace a running process, without root where its configuration lets you; Ctrl-C stops and finishes the trace.

    pytrace-ebpf request --pid 1234
    pytrace-ebpf request --pid 1234 --duration 30s -o slow

Root may trace every process, others those that they could debug: their own, unless set-user-id. The options are those of attach. The trace
is yours, made in your directory with your rights. Requests for one process with the same options share its probes.
"""

import argparse
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pytrace_ebpf.cli import attach
from pytrace_ebpf.daemon.api import protocol
from pytrace_ebpf.daemon.api.peer import Peer
from pytrace_ebpf.errors import HostError, TargetError, UsageError
from pytrace_ebpf.options import option_rules, recording
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.output.directory import Output
from pytrace_ebpf.record.rights.user import as_caller, caller
from pytrace_ebpf.runs import recorded
from pytrace_ebpf.terminal import stopping

NAME = "request"
_DURATION_S = 5.0
_CONNECTING_S, _LOOK_S = 10.0, 0.2
_HELD = ("trigger", "after", "every", "traces", "lasts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `request`."""
    parser.add_argument("-p", "--pid", type=int, required=True, metavar="PID", help="process to trace")
    parser.add_argument(
        "--duration", type=attach.duration, default=_DURATION_S, metavar="S", help=f"stop after S seconds, or 90s, 1m30s ({_DURATION_S:g}s)"
    )
    parser.add_argument("--socket", type=Path, default=Path(protocol.SOCKET), metavar="PATH", help=f"where the daemon listens ({protocol.SOCKET})")
    recording.add_common_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that cannot go together, or not with `request`."""
    option_rules.to_recording(args)
    if given := [name for name in _HELD if getattr(args, name)]:
        given[:1] = ["from-call"] if any(condition.begins for condition in args.trigger) else given[:1]
        raise UsageError(f"request writes what it records; --{given[0]} is an option of pytrace-ebpf attach.")


def run(args: argparse.Namespace) -> int:
    """Have args.pid traced until Ctrl-C, args.duration or its end."""
    check(args)
    waiting.tell(recorded.say, args.quiet)
    if not Path(f"/proc/{args.pid}/stat").exists():  # whether a daemon runs or not
        raise TargetError(f"process {args.pid} does not exist")
    with waiting.on(f"the daemon, to answer at {args.socket}"):
        connection = _connected(args.socket, args.pid)
    lines = protocol.Lines(connection, protocol.MOST_ANSWER)
    try:
        with as_caller():
            output = Output(args.output)
        try:
            _ask(lines, args, output)
            _follow(lines, args, output)
        except BaseException:
            with as_caller():
                output.abandon((), ())
            raise
        finally:
            output.close()
    finally:
        lines.close()
    return 0


def _connected(path: Path, pid: int) -> socket.socket:
    """A connection to the daemon. Raises HostError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        protocol.connect(connection, path, _CONNECTING_S)
        peer = Peer.of(connection)
    except OSError as error:
        connection.close()
        why = "no daemon runs" if isinstance(error, FileNotFoundError | ConnectionRefusedError) else f"the daemon does not answer ({error})"
        instead = "start one, sudo pytrace-ebpf daemon, or trace as root: sudo pytrace-ebpf attach"
        raise HostError(f"{why} at {path}; {instead} --pid {pid}") from None
    if peer.uid not in (0, os.geteuid()):
        connection.close()
        raise HostError(f"who listens at {path} is neither root nor you; is there another daemon? --socket PATH names its socket")
    return connection


def _ask(lines: protocol.Lines, args: argparse.Namespace, output: Output) -> None:
    whose = caller() if os.geteuid() == 0 else None
    request = {
        "do": "trace", "pid": args.pid, "words": args.words, "output": str(output.path),
        "caller": [whose.uid, whose.gid, list(whose.groups)] if whose else None,
    }  # fmt: skip
    protocol.send(lines.connection, request, _CONNECTING_S, [output.fileno()])  # where it was turned away the answer says why


def _follow(lines: protocol.Lines, args: argparse.Namespace, output: Output) -> None:
    """Print what the daemon says until its last word. Raises what that is."""
    from pytrace_ebpf.record.process.targets import Begun
    from pytrace_ebpf.record.session import Status

    with stopping.stop_signals(signal.SIGINT, *stopping.not_ignored(signal.SIGTERM, signal.SIGHUP)) as stopped:
        answers = _told(_answers(lines, stopped), args.quiet)
        with waiting.on(f"the daemon, to begin recording process {args.pid}"):
            answer = next(answers)
        if "begun" in answer:
            recorded.beginning([Begun(*each) for each in answer["begun"]], answer["said"], args.quiet)
            with recorded.progress(args.quiet, "Ctrl-C stops and finishes the trace", recorded.cheaper(args)) as show:
                for answer in answers:
                    if "progress" in answer:
                        show(Status(**answer["progress"]))
    if (error := protocol.refused(answer)) is not None:
        raise error
    if not args.quiet:
        recorded.say(recorded.line(Status(**answer["result"]["progress"])))
        for sentence in answer["result"]["said"]:
            recorded.say(sentence)
        recorded.say(recorded.where(output.where()))


def _told(answers: Iterator[dict[str, Any]], quiet: bool) -> Iterator[dict[str, Any]]:
    """Those that are not of what the daemon waits for, which is printed."""
    for answer in answers:
        sentence = answer.get("waiting")
        if sentence is None:
            yield answer
        elif not (quiet and sentence.startswith(waiting.SAYS)):
            recorded.say(sentence)


def _answers(lines: protocol.Lines, stopped: stopping.Stopped) -> Iterator[dict[str, Any]]:
    """What the daemon says, to its last word; it is asked to end once this is `stopped`. Raises HostError where it is gone before."""
    asked_to_end = False
    with ExitStack() as ending:
        while True:
            if stopped() and not asked_to_end:
                asked_to_end = protocol.send(lines.connection, protocol.END, _CONNECTING_S)
                ending.enter_context(waiting.on("the daemon, to finish the trace"))
            if (answer := _next(lines)) is not None:
                yield answer
                if "code" in answer:
                    return


def _next(lines: protocol.Lines) -> dict[str, Any] | None:
    """What the daemon says next; None where it says nothing for a moment. Raises HostError where it is gone."""
    try:
        answer = lines.receive(_LOOK_S)
    except TimeoutError:
        return None
    except (OSError, protocol.Malformed):
        answer = None
    if answer is None:
        raise HostError("the daemon ended before the recording did; what was recorded until then is in the trace's directory")
    return answer
