"""`%load_ext pytrace_ebpf` in IPython or a notebook: the cell magic %%pytrace records what a cell does, and shows it in place."""

import html
import shlex
import tempfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytrace_ebpf.cli import report
from pytrace_ebpf.cli.main import parser
from pytrace_ebpf.errors import PytraceError
from pytrace_ebpf.self_recording import SelfRecording
from pytrace_ebpf.terminal.screen import Screen

if TYPE_CHECKING:
    from pytrace_ebpf.trace.reader import Trace

_WIDTH = 120  # cells of the report
_HEIGHT = 560  # pixels of the page
_FRAME = '<iframe style="width: 100%; height: {height}px; border: 0" sandbox="allow-scripts" srcdoc="{page}"></iframe>'
_TRACE = "_pytrace"  # the variable that it is left in
_TOP = "10"


def load(shell: Any) -> None:
    """Add %%pytrace to a shell of IPython's."""

    def pytrace(line: str, cell: str) -> None:
        """Run the cell and show where its time went: the report, and the page of `report --html`, opened at its timeline.

            %%pytrace [OPTION...]

        The options are those of `pytrace-ebpf attach`, for example --args shop, --c-calls or --sample. Without any, root records every call; others
        have their stacks sampled, or with --daemon every call recorded by the daemon, for 60s or --duration. The trace goes into a new temporary
        directory, or into what -o names; cut to the cell it is left in _pytrace. A cell that cannot be recorded is not run, and is an error.
        """
        from IPython.core.error import UsageError  # shown as one line, without a traceback; "Run All" stops

        try:
            ran = _trace_cell(shell, line, cell)
        except PytraceError as error:
            raise UsageError(f"pytrace-ebpf: {error}") from None
        if not ran.success:  # what it raised has been shown
            raise UsageError(f"the recorded cell failed: {type(ran.error_before_exec or ran.error_in_exec).__name__}")

    shell.register_magic_function(pytrace, "cell", "pytrace")


def _trace_cell(shell: Any, line: str, cell: str) -> Any:
    """Show what the cell did; IPython's result of running it."""
    directory, words = _directory(shlex.split(line))
    with SelfRecording(directory, words) as own:
        ran = shell.run_cell(cell)
    trace = shell.user_ns[_TRACE] = own.trace
    first, last = (f"{max(0, ns - trace.whole.start_ns) / 1e9:.6f}" for ns in (own.start_ns, own.end_ns))
    args = parser(["report"]).parse_args(["report", str(directory), "--from", first, "--until", last, "--top", _TOP])
    screen = Screen(width=_WIDTH, highlight=False, emoji=False, markup=False, force_jupyter=False)
    facts = report.show(args, screen)
    _show(trace, facts)
    return ran


def _directory(words: list[str]) -> tuple[Path, list[str]]:
    """The directory of the trace, and the other words."""
    for option in ("-o", "--output"):
        if option in words[:-1]:
            at = words.index(option)
            return Path(words[at + 1]).absolute(), words[:at] + words[at + 2 :]
    return Path(tempfile.mkdtemp(prefix="pytrace-")) / "trace", words


def _show(trace: "Trace", facts: dict[str, Any]) -> None:
    """The page of what happened, below the report that says `facts`."""
    from IPython.display import display

    from pytrace_ebpf.view.page import page

    written = BytesIO()
    page.write(trace, facts, written, view="timeline")
    frame = _FRAME.format(height=_HEIGHT, page=html.escape(written.getvalue().decode()))
    display({"text/html": frame, "text/plain": f"(a picture of the calls of {trace.directory})"}, raw=True)  # type: ignore[no-untyped-call]
