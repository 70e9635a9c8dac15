"""Say what works here, what does not, and how to fix it.

With --fix, root fixes what can be fixed: bcc's Python bindings and kernel headers by the package manager of Debian, Ubuntu, Fedora, Arch or Alpine,
tracefs by mounting it; then the eBPF programs are compiled, once for a kernel. It shows the commands and asks first; others than root get them as one
command. With --compile, root has them compiled and nothing else, also for a kernel that is to be booted.
With --pid, also what can be found out about that process: its Python, its probes, whether they are reliable, the cost.
Exit code 0: tracing works; 4: not on this host; 3: not of that process.
"""

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from pytrace_ebpf.errors import HostError, UsageError
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record.doctor import Finding, exit_code, findings
from pytrace_ebpf.record.kernel import compile_ahead
from pytrace_ebpf.record.kernel.fixes import as_one_command, carry_out, plan
from pytrace_ebpf.terminal.screen import console

NAME = "doctor"
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `doctor`."""
    parser.add_argument("-p", "--pid", type=int, metavar="PID", help="also look at this process")
    help_ = "with --pid: which of the functions that it has loaded this fits, as a pattern of --args, --lines-of and --trigger call"
    parser.add_argument("--args", action="append", default=[], metavar="PATTERN", help=help_)
    parser.add_argument("--include", action="append", default=[], metavar="PATTERN", help="with --pid: the same of --include and --exclude")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--fix", action="store_true", help="install what this host lacks, as root")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="",
        metavar="RELEASE",
        help="as root: compile the eBPF programs for this kernel, or for that of a release (uname -r)",
    )
    parser.add_argument("--yes", action="store_true", help="with --fix: do not ask first")


def run(args: argparse.Namespace) -> int:
    """Print the findings; the exit code says whether tracing is possible."""
    if args.yes and not args.fix:
        raise UsageError("--yes has no effect without --fix; leave it out.")
    if args.compile is not None:
        return _compile(args.compile or platform.release())
    if args.fix:
        _fix(args.yes)
    patterns = [*(("--args", pattern) for pattern in args.args), *(("--include", pattern) for pattern in args.include)]
    if patterns and args.pid is None:
        raise UsageError("patterns fit functions of a process: give its --pid, too.")
    found = findings(args.pid, patterns)
    code = exit_code(found)
    if args.json:  # `mend` is what `fix` was called before
        print(json.dumps({"can_trace": code == 0, "findings": [asdict(finding) | {"mend": finding.fix} for finding in found]}, indent=1))
    elif sys.stdout.isatty():
        console().print(_table(found))
    else:
        print("\n".join(map(printable, _lines(found))))
    return code


def _compile(release: str) -> int:
    """What is not compiled yet. Raises HostError for others than root, whose programs are not kept, and where there is nothing to compile with."""
    if os.geteuid():
        raise HostError("only root's programs are kept: sudo pytrace-ebpf doctor --compile")
    if not compile_ahead.compile_all(release, _say):
        return HostError.exit_code
    _say(f"the eBPF programs are compiled for Linux {release}")
    return 0


def _fix(unasked: bool) -> None:
    """Fix what can be fixed. Raises HostError for others than root, where nobody agrees, and for a step that fails."""
    steps = plan(findings())
    if not steps:
        _say("there is nothing that --fix could fix")
        return
    if os.geteuid():
        raise HostError(f"--fix needs root; as one command: {as_one_command(steps)}")
    if not unasked:
        for step in filter(str, steps):
            _say(str(step))
        if not sys.stdin.isatty():
            raise HostError("nothing was changed, as nobody can be asked here; doctor --fix --yes does the above")
        _say("do this? [y/N]")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise HostError("nothing was changed")
    carry_out(steps, _say)


def _say(line: str) -> None:
    print(f"doctor: {line}", file=sys.stderr, flush=True)


def _table(found: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in found:
        text = Text(finding.sentence)
        if finding.fix and finding.ok != "ok":
            text.append(f"\n{finding.fix}", "bold")
        table.add_row(Text(finding.ok, _STYLES[finding.ok]), Text(finding.subject, no_wrap=True), text)
    return table


def _lines(found: list[Finding]) -> list[str]:
    lines = []
    for finding in found:
        lines.append(f"{finding.ok:8} {finding.subject}: {finding.sentence}")
        if finding.fix and finding.ok != "ok":
            lines.append(f"{'':8} to fix it: {finding.fix}")
    return lines
