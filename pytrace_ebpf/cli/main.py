"""The entry point: picks the command, and turns what went wrong into one sentence and an exit code."""

import argparse
import ast
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytrace_ebpf
from pytrace_ebpf.errors import PytraceError

# The registry: one module of this package per command, with NAME, add_arguments(parser), run(args) -> exit code,
# and a docstring that is its help.
COMMANDS = ("doctor", "run", "attach", "report", "export", "info", "experiment")


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """The command line; only the module of the `chosen` command is imported, so that reading needs no recorder."""
    top = argparse.ArgumentParser(prog="pytrace-ebpf", description=pytrace_ebpf.__doc__)
    top.add_argument("--version", action="version", version=f"pytrace-ebpf {pytrace_ebpf.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name in COMMANDS:
        summary, _, rest = _docstring(name).partition("\n")
        sub = commands.add_parser(
            name,
            help=summary.replace("%", "%%"),
            description=f"{summary}\n{rest}".strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            module = importlib.import_module(f"pytrace_ebpf.cli.{name}")
            module.add_arguments(sub)
            sub.set_defaults(run_command=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit codes are those of errors.py, 2 for usage, 130 for Ctrl-C, 141 for a closed pipe."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parser(next((w for w in words if w in COMMANDS), None)).parse_args(words)
        code: int = args.run_command(args)
        sys.stdout.flush()
        return code
    except PytraceError as error:
        print(f"pytrace-ebpf: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whatever is still buffered has nowhere to go; without this the interpreter complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _docstring(name: str) -> str:
    """The help of a command, read without importing it."""
    try:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        return "(not part of this installation)"
    return (ast.get_docstring(ast.parse(source)) or "").strip()


if __name__ == "__main__":
    sys.exit(main())
