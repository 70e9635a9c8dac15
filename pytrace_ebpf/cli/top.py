"""Watch where running Python programs spend their time: functions, threads, lines and waits of the last seconds.

    pytrace-ebpf top 1234
    pytrace-ebpf top --match gunicorn
    pytrace-ebpf top

Without a process all Python processes are watched that run and that are started meanwhile. Stacks are sampled, on a core and off it, and the
threads' states are exact; the programs run on untouched. Press ? for the keys; e records every call for the next 5 s.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from pytrace_ebpf import extras, priority, self_command
from pytrace_ebpf.cli import attach
from pytrace_ebpf.errors import HostError, PytraceError, TargetError, UsageError
from pytrace_ebpf.options import recording
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record import waiting
from pytrace_ebpf.runs import recorded
from pytrace_ebpf.units import nanoseconds

if TYPE_CHECKING:
    from pytrace_ebpf.view.top.feed import Ended

NAME = "top"
_LAST_S, _MOST_LAST_S = 10.0, 600.0
_PATIENCE_S = 10.0  # for what is being recorded when the view is left
_ERRORS: dict[int, type[PytraceError]] = {each.exit_code: each for each in (UsageError, TargetError, HostError)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `top`."""
    parser.add_argument(
        "pids", type=attach.process_ids, nargs="*", default=[], metavar="PID", help="process to watch; several, also joined by commas"
    )
    parser.add_argument("-p", "--pid", type=attach.process_ids, action="append", default=[], metavar="PID", help="the same as an option")
    parser.add_argument(
        "--match", type=attach.pattern, metavar="PATTERN",
        help="watch every Python process whose command line has this regular expression in it, those that are started later too; or by who they are, as of attach",
    )  # fmt: skip
    parser.add_argument("--sample", type=recording.rate, default=recording.HZ, metavar="HZ", help=f"samples a second and core ({recording.HZ:g})")
    parser.add_argument("--last", type=_span, default=_LAST_S, metavar="TIME", help=f"show the last 10s, 1m, up to 10m ({_LAST_S:g}s)")
    parser.add_argument("--no-follow", action="store_true", help="do not watch processes that the target starts")


def run(args: argparse.Namespace) -> int:
    """Watch until the user leaves."""
    extras.require("textual")
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # Textual draws on stderr
        raise UsageError("top needs a terminal; pytrace-ebpf attach --sample records the same, and report shows it")
    pids = list(dict.fromkeys(pid for each in (*args.pids, *args.pid) for pid in each))
    wanted = {"pids": pids, "match": args.match, "hz": args.sample, "last_s": args.last, "follow": not args.no_follow}
    connection, child = _start(wanted)
    try:
        ended = _watch(connection)
    finally:
        connection.close()
        _end(child)
    if ended is not None and ended.code:
        raise _error(ended)
    return 0


def _watch(connection: socket.socket) -> "Ended | None":
    """Show what comes until the user leaves; the last that came, where that says that nothing more will. Raises PytraceError where nothing did."""
    from pytrace_ebpf.record.rights.privileges import give_up
    from pytrace_ebpf.terminal.screen import ascii_only
    from pytrace_ebpf.view.top.app import Top
    from pytrace_ebpf.view.top.feed import Connection, Ended, Said

    source = Connection(connection)
    while isinstance(first := source.first(), Said) and first.sentence.startswith(waiting.SAYS):
        recorded.say(first.sentence)
    if isinstance(first, Ended):
        raise _error(first)
    priority.let_go()  # of the process that records, too, while this one may: that has begun
    give_up()
    app = Top(source, first, ascii_only=ascii_only())
    app.run()
    for sentence in app.saved:
        print(printable(sentence))
    return app.ended


def _error(ended: "Ended") -> PytraceError:
    return _ERRORS.get(ended.code, PytraceError)(ended.sentence)


def _start(wanted: dict[str, object]) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """The process that records, which has the privileges that this one gives up. It ends when the connection does, however that comes about."""
    ours, theirs = socket.socketpair()
    with theirs:
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        child = self_command.start_worker(
            "live_view", str(theirs.fileno()), files=[theirs.fileno()], start_new_session=True, env=environment, cwd=None
        )
    ours.sendall(json.dumps(wanted).encode() + b"\n")
    return ours, child


def _end(child: "subprocess.Popen[bytes]") -> None:
    """It has noticed that nobody listens any more; where it has not, it may be root's by now, and ends by itself."""
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        child.wait(_PATIENCE_S)
    if child.poll() is None:
        with suppress(PermissionError):
            child.kill()
            child.wait()


def _span(text: str) -> float:
    seconds = nanoseconds(text) / 1e9
    if not 1 <= seconds <= _MOST_LAST_S:
        raise argparse.ArgumentTypeError(f"{text} is not a time to look back; give one from 1s to 10m")
    return seconds
