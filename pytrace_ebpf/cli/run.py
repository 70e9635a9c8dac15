"""Start a program and trace it from its first call on, as the user who called.

    pytrace-ebpf run -o trace -- python3 program.py arguments

Under sudo the program runs as the user who called sudo, not as root. The exit code
is the program's own.
"""

import argparse
import os
import signal
import sys
from dataclasses import replace

from pytrace_ebpf.cli import recording
from pytrace_ebpf.errors import UsageError

NAME = "run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `run`."""
    recording.add_common_arguments(parser)
    parser.add_argument(
        "--rootless",
        action="store_true",
        help="without eBPF and privileges: calls by the agent, scheduling as far as the kernel tells it to anybody",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARG...]", help="program to start")


def run(args: argparse.Namespace) -> int:
    """Run args.command under the tracer and pass on its exit code."""
    from pytrace_ebpf.record.session import Session

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("run needs a program to start: pytrace-ebpf run -- python3 program.py")
    # Ctrl-C reaches the program from the terminal itself; what else ends us is passed on to it.
    with (
        recording.stop_signals((signal.SIGINT,)),
        recording.stop_signals((signal.SIGTERM, signal.SIGHUP)) as stopped,
    ):
        options = recording.options(args)
        if args.rootless:
            if options.source == "usdt":
                raise UsageError("--rootless has no probes; leave --source usdt out")
            if options.layers:
                raise UsageError("--rootless has no probes; leave --layers and --operators out")
            options = replace(options, source="agent", rootless=True)
        session = Session(options, sys.argv)
        try:
            pid = session.launch(command)

            def stop() -> bool:
                if stopped():  # pass it on, once; the recording ends with the program
                    os.kill(pid, signal.SIGTERM)
                    stopped.clear()
                return False

            with recording.progress(args.quiet, f"tracing process {pid} until it ends") as show:
                session.run(stop, show)
            code = session.finish()
            recording.closing(session.status(), options.output, args.quiet)
        finally:
            session.close()
    return 0 if code is None else code
