"""Start a program and trace it from its first call on, as the user who called.

    pytrace-ebpf run -o trace -- python3 program.py arguments

Under sudo the program runs as the user who called sudo, not as root. The exit code
is the program's own.
"""

import argparse
import os
import shlex
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from pytrace_ebpf.errors import HostError, UsageError
from pytrace_ebpf.options import option_rules, recording
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.rights.user import callers_environment, invoking_user
from pytrace_ebpf.runs import recorded, snapping, summing
from pytrace_ebpf.terminal import stopping

if TYPE_CHECKING:
    from pytrace_ebpf.record.session import Session

NAME = "run"
_WITHOUT_VARIABLES = "the program runs without the variables that sudo took away; sudo env NAME=value pytrace-ebpf run ... gives it some"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `run`."""
    recording.add_common_arguments(parser)
    parser.add_argument(
        "--rootless",
        action="store_true",
        help="without eBPF and privileges: calls by the agent, scheduling as far as the kernel reports it to anybody",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARG...]", help="program to start")


def run(args: argparse.Namespace) -> int:
    """Run args.command under the tracer and pass on its exit code."""
    waiting.tell(recorded.say, args.quiet)
    recording.prepare()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("run needs a program to start: pytrace-ebpf run -- python3 program.py")
    option_rules.to_recording(args)
    # Ctrl-C reaches the program from the terminal itself; what else ends us is passed on to it. What we are to ignore, so is the program.
    with (
        stopping.stop_signals(*stopping.not_ignored(signal.SIGINT)) as interrupted,
        stopping.stop_signals(*stopping.not_ignored(signal.SIGTERM, signal.SIGHUP)) as stopped,
        snapping.snap_requests(args) as asked,
    ):
        options = recording.options(args)
        if args.rootless:
            options = replace(options, source=options.source if options.samples_alone else "agent", rootless=True)
        session = recording.new_session(options, f"pytrace-ebpf run --rootless -- {shlex.join(command)}", command)
        try:
            pid = session.launch(command)
            if invoking_user() is not None and callers_environment() is None and not args.quiet:
                recorded.say(_WITHOUT_VARIABLES)

            def stop() -> bool:
                asked(session)
                if interrupted():  # while the program runs and this can see it, Ctrl-C is the program's
                    interrupted.clear()
                if stopped():  # pass it on, once; the recording ends with the program
                    os.kill(pid, signal.SIGTERM)
                    stopped.clear()
                return False

            with (
                recorded.progress(args.quiet, f"tracing process {pid} until it ends", recorded.cheaper(args)) as show,
                summing.beside(session, args.retain is not None or bool(args.trigger), show) as look,
            ):
                session.run(stop, look)
            with recorded.ticking("finishing the trace", args.quiet):
                code = session.finish()
            _close(session, args.quiet)
            if code is None:  # the trace is full, and the program is not to suffer for it
                if not args.quiet:
                    recorded.say("the program goes on untraced")
                code = session.wait(stop)
        finally:
            session.close()
    return 0 if code is None else code


def _close(session: "Session", quiet: bool) -> None:
    """The closing lines; that the trace could not be written is said too, but the exit code is the program's."""
    try:
        recorded.closing(session, quiet, started=True)
    except HostError as error:
        recorded.say(f"pytrace-ebpf: {error}")
