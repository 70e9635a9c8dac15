"""The entry point: picks the command, and turns what went wrong into one sentence and an exit code."""

import argparse
import ast
import difflib
import importlib
import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytrace_ebpf
from pytrace_ebpf import extras, priority
from pytrace_ebpf.errors import DEBUG, HostError, OutputError, PytraceError, UsageError
from pytrace_ebpf.printable import printable
from pytrace_ebpf.terminal import standard_streams

# The registry: one module of this package per command, with NAME, add_arguments(parser), run(args) -> exit code,
# and a docstring that is its help.
COMMANDS = (
    "doctor",
    "run",
    "attach",
    "top",
    "dump",
    "request",
    "snap",
    "daemon",
    "report",
    "diff",
    "check",
    "export",
    "info",
    "experiment",
    "mcp",
    "completion",
)
# Those that are asked for where something is slow now: they come first until they record, or for some seconds.
_AT_ONCE = ("doctor", "attach", "top", "dump", "report")
_EARLIER = {"trace": "request"}  # names that commands had: they work on, and are not shown

_NO_THREAD = "can't start new thread"
_MOST_SAID = 200  # characters of what a library says
# What argparse says -> what a person would.
_SAID_BETTER = {
    r"^the following arguments are required: (.*)": r"\1 is missing",
    r"^argument (?:-\w/)?(\S+): invalid \w+ value: '(.*)'": r"\1 takes a number, which \2 is not",
    r"^argument (?:-\w/)?(\S+): expected (?:one|at least one) argument": r"\1 needs a value",
    r"^argument (?:-\w/)?(\S+): ignored explicit argument .*": r"\1 takes no value",
    r"^argument (?:-\w/)?(\S+): ": r"\1: ",
}


class Parser(argparse.ArgumentParser):
    """argparse's, which says in one sentence what is wrong, and what was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        for pattern, said in _SAID_BETTER.items():
            message = re.sub(pattern, said, message)
        raise UsageError(message if "; " in message or message.endswith("?") else f"{message}; {self.prog} --help says more")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            # Only a subcommand knows its options; it is asked for them by its parser, which `set_defaults` left.
            of: argparse.ArgumentParser = getattr(parsed, "of_command", self)
            names = [name for action in of._actions for name in action.option_strings]
            of.error(f"{unknown[0]} is not an option or argument of {of.prog}" + _meant(unknown[0].partition("=")[0], names))
        return parsed

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(name) for name in action.choices]
            is_command = isinstance(action, argparse._SubParsersAction)
            what = "command" if is_command else f"value of {'/'.join(action.option_strings)}"
            names += ["help"] if is_command else []
            raise argparse.ArgumentError(None, f"{value} is not a {what}" + (_meant(str(value), names) or f": there are {', '.join(names)}"))


def _meant(word: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {close[0]}?" if close else ""


def parser(chosen: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """The command line; only the modules of the `chosen` commands are imported, so that reading needs no recorder."""
    top = Parser(prog="pytrace-ebpf", description=pytrace_ebpf.__doc__)
    top.add_argument("-V", "--version", action="version", version=f"pytrace-ebpf {pytrace_ebpf.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        summary, _, rest = _docstring(name).partition("\n")
        sub = commands.add_parser(
            name,
            help=summary.replace("%", "%%"),
            description=f"{summary}\n{rest}".strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in chosen:
            module = importlib.import_module(f"pytrace_ebpf.cli.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run_command=module.run, of_command=sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit codes are those of errors.py, 2 for usage, 130 for Ctrl-C, 141 for a closed pipe."""
    if argv is None:
        standard_streams.prepare()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except OutputError as error:
        standard_streams.forget()
        return _said(error)
    except PytraceError as error:
        return _said(error)
    except ModuleNotFoundError as error:
        if (said := extras.missing(error)) is None:
            raise
        return _said(said)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        standard_streams.forget()
        return 141
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        if DEBUG in os.environ or (isinstance(error, RuntimeError) and _NO_THREAD not in str(error)):
            raise
        return _said(HostError(f"{_refused(error)}; {DEBUG}=1 shows where"))


def _run(words: list[str]) -> int:
    """The exit code; raises what main() puts into words."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    words = renamed(words)
    with priority.first() if words and words[0] in _AT_ONCE else nullcontext():
        return _run_command(words)


def _run_command(words: list[str]) -> int:
    try:
        args = parser([w for w in words if w in COMMANDS][:1]).parse_args(words)
    except SystemExit as printed:  # --help, --version
        return int(printed.code or 0)
    args.words = words
    _sweep()
    return int(args.run_command(args))


def renamed(words: Sequence[str]) -> list[str]:
    """The same words, the command by its name of today."""
    return [*(_EARLIER.get(word, word) for word in words[:1]), *words[1:]]


def _refused(error: OSError | MemoryError | ImportError | RuntimeError) -> str:
    """What the system did not give us."""
    if isinstance(error, MemoryError):
        return "this host, or a limit of this process (ulimit -v, a cgroup), has too little memory for that"
    if isinstance(error, RuntimeError):
        return "no thread can be started: this host, or a limit of this process (ulimit -u and -v, a cgroup), has no room for one"
    if isinstance(error, ImportError):
        return f"a package cannot be loaded, for lack of memory or as it is damaged ({str(error).strip().splitlines()[-1][:_MOST_SAID]})"
    if isinstance(error, FileNotFoundError) and not _has_directory():
        return "the directory that this command was started in is gone; change to one that is there"
    what = f" {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
    return f"the system refuses something{what and ' of'}{what} ({error.strerror or error})"


def _has_directory() -> bool:
    try:
        return bool(Path.cwd())
    except OSError:
        return False


def _said(error: PytraceError) -> int:
    print(f"pytrace-ebpf: {printable(str(error))}", file=sys.stderr)
    return error.exit_code


def _sweep() -> None:
    """Remove what tracers left that were killed: a traced process's user may not remove all of it."""
    if sys.platform == "linux":
        from pytrace_ebpf.record.agent.leftovers import sweep

        with suppress(OSError):
            sweep()


def _docstring(name: str) -> str:
    """The help of a command, read without importing it."""
    try:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        return "(not part of this installation)"
    end = source.index('"""', 3) + 3  # every module begins with it; the rest takes long to parse
    return (ast.get_docstring(ast.parse(source[:end])) or "").strip()


if __name__ == "__main__":
    sys.exit(main())
