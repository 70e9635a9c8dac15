"""Say what works here, what does not, and how to mend it.

With --pid, also what can be found out about that process: its Python, its probes, whether they are reliable, the cost.
Exit code 0: tracing works; 4: not on this host; 3: not of that process.
"""

import argparse
import json
import sys
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from pytrace_ebpf.cli.screen import console
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record.doctor import Finding, exit_code, findings

NAME = "doctor"
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `doctor`."""
    parser.add_argument("-p", "--pid", type=int, metavar="PID", help="also look at this process")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings; the exit code says whether tracing is possible."""
    found = findings(args.pid)
    code = exit_code(found)
    if args.json:
        print(json.dumps({"can_trace": code == 0, "findings": [asdict(finding) for finding in found]}, indent=1))
    elif sys.stdout.isatty():
        console().print(_table(found))
    else:
        print("\n".join(map(printable, _lines(found))))
    return code


def _table(found: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in found:
        text = Text(finding.sentence)
        if finding.mend and finding.ok != "ok":
            text.append(f"\n{finding.mend}", "bold")
        table.add_row(Text(finding.ok, _STYLES[finding.ok]), Text(finding.subject, no_wrap=True), text)
    return table


def _lines(found: list[Finding]) -> list[str]:
    lines = []
    for finding in found:
        lines.append(f"{finding.ok:8} {finding.subject}: {finding.sentence}")
        if finding.mend and finding.ok != "ok":
            lines.append(f"{'':8} to mend it: {finding.mend}")
    return lines
