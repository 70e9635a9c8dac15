"""Answer an assistant's questions about traces and processes, over the Model Context Protocol.

    claude mcp add pytrace -- pytrace-ebpf mcp --directory ~/traces

The server speaks on standard input and output, and reads: traces below one directory, and what a process does right now (dump). It records
nothing unless --record is given. What it may read is what its user may: as root also processes of others.
"""

import argparse
import json
import subprocess
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import pytrace_ebpf
from pytrace_ebpf import self_command
from pytrace_ebpf.errors import PytraceError, UsageError
from pytrace_ebpf.trace.schema import MANIFEST
from pytrace_ebpf.view.by import BY

NAME = "mcp"
Tool: TypeAlias = Callable[..., Awaitable[str]]
_MOST = 200_000  # characters of an answer
_MOST_ROWS = 500
_DEEPEST, _MOST_TRACES = 3, 200
_INSTRUCTIONS = (
    "Recordings of Python programs: where the wall time of each call went - on a core, in the run queue, waiting for the GIL, or blocked - and for what. "
    "Begin with traces, then report: its `findings` say what matters, with the command that shows more. Times are in ns; null is what was not recorded. "
    "dump says what a process does right now."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mcp`."""
    parser.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="traces below it can be asked about (the current one)")
    parser.add_argument("--record", action="store_true", help="let the assistant record processes, too, for up to a minute each")


def run(args: argparse.Namespace) -> int:
    """Serve until standard input ends."""
    if not args.directory.is_dir():
        raise UsageError(f"{args.directory} is not a directory: name the one that has the traces")
    server(args.directory.resolve(), args.record).run("stdio")
    return 0


def server(directory: Path, record: bool) -> Any:
    """The SDK's server with a tool for each question. Raises ModuleNotFoundError without the SDK."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    made = MCPServer("pytrace-ebpf", version=pytrace_ebpf.__version__, instructions=_INSTRUCTIONS, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    tools = Tools(directory)
    for tool in (tools.traces, tools.info, tools.report, tools.diff, tools.sql, tools.dump):
        made.tool(annotations=reads)(_in_a_sentence(tool))
    if record:
        made.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False))(_in_a_sentence(tools.attach))
    return made


def _in_a_sentence(tool: Tool) -> Tool:
    """It, with its errors as the client is to see them."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    async def answer(*args: Any, **named: Any) -> str:
        try:
            return await tool(*args, **named)
        except (ValueError, OSError, PytraceError) as error:
            raise ToolError(str(error)) from None

    return answer


class Tools:
    """What can be asked, each answered by the command of its name with --json; errors are the sentences of these."""

    def __init__(self, directory: Path) -> None:
        """`directory`: below it lie the traces, resolved."""
        self._directory = directory

    async def traces(self) -> str:
        """List the traces: the name by which the other tools know each, the program, when it was recorded (s since 1970) and for how long (s)."""
        found = []
        for manifest in sorted(path for depth in range(_DEEPEST + 1) for path in self._directory.glob("*/" * depth + MANIFEST)):
            try:
                trace = pytrace_ebpf.open(self._of(str(manifest.parent)))
            except (PytraceError, ValueError):  # none of ours, or damaged: asked about by name that is said
                continue
            at = next((row["realtime_ns"] for row in trace.manifest["clock"] if row.get("realtime_ns")), None)
            row = {"trace": str(trace.directory.relative_to(self._directory)), "command": trace.manifest["target"].get("command")}
            found.append(row | {"recorded_at": at and at / 1e9, "seconds": (trace.end_ns - trace.start_ns) / 1e9})
            if len(found) == _MOST_TRACES:
                break
        return json.dumps(found)

    async def info(self, trace: str) -> str:
        """What is in a trace: its tables, the sources of calls and scheduling, what was lost, and whether it is complete."""
        return await _answer("info", self._of(trace), "--json")

    async def report(
        self,
        trace: str,
        by: str = "function",
        top: int = 20,
        since: str = "",
        until: str = "",
        pid: int = 0,
        tid: int = 0,
        only: str = "",
        request: str = "",
        what_if: str = "",
    ) -> str:
        """Where the time went: `findings` first, then rows by function, line, thread, core, gil, wait, client, request, path, task, memory and others.

        since, until: of the recording, as 1.5s. only: own, function=NAME, module=NAME, thread=NAME or task=NAME. request: by request and by path, those
        that functions of this pattern answer. what_if: by path, "Shop.pay 2x", lock, gil or "cores 4": how long requests would take then.
        """
        if by not in BY:
            raise ValueError(f"there is no report by {by}; there are {', '.join(BY)}")
        texts = {"--from": since, "--until": until, "--only": only, "--request": request, "--what-if": what_if}
        words = [word for option, value in texts.items() if value for word in (option, value)]
        words += [word for option, number in (("--pid", pid), ("--tid", tid)) if number for word in (option, str(number))]
        return await _answer("report", self._of(trace), "--json", *_rows(by, top), *words)

    async def diff(self, before: str, after: str, by: str = "function", top: int = 20) -> str:
        """What changed between two traces, and how sure that is."""
        return await _answer("diff", self._of(before), self._of(after), "--json", *_rows(by, top))

    async def sql(self, trace: str, query: str) -> str:
        """The answer to a query in DuckDB's SQL over the tables of a trace, of at most 500 rows. calls, waits, functions, samples ...: SHOW TABLES, DESCRIBE calls."""
        from anyio import to_thread

        opened = pytrace_ebpf.open(self._of(trace))
        try:
            rows = await to_thread.run_sync(opened.sql, query)
        except PytraceError:
            raise
        except Exception as error:  # DuckDB's, which says what it did not understand
            raise ValueError(str(error)) from None
        text = rows.head(_MOST_ROWS).to_json(orient="records")
        return _short(f'{{"rows": {text}, "more": {max(0, len(rows) - _MOST_ROWS)}}}')

    async def dump(self, pid: int) -> str:
        """What each thread and task of a Python process does right now: its stack, what it waits for, who has that, since when; and deadlocks."""
        return await _answer("dump", str(pid), "--json")

    async def attach(self, pid: int, name: str, seconds: float = 10.0) -> str:
        """Record a running Python process for some seconds, 60 at most, as the trace `name`, which must not be there yet."""
        output = self._of(name)
        if not 0 < seconds <= 60:
            raise ValueError("a recording lasts more than 0 and at most 60 seconds")
        await _answer("attach", "--pid", str(pid), "--duration", str(seconds), "-o", output)
        return await _answer("info", output, "--json")

    def _of(self, name: str) -> str:
        """The directory of a trace. Raises ValueError for what lies elsewhere."""
        path = (self._directory / name).resolve()
        if not path.is_relative_to(self._directory):
            raise ValueError(f"{name} does not lie below {self._directory}; traces says which there are")
        return str(path)


async def _answer(*words: str) -> str:
    """What our command says. Raises ValueError with its sentence where it fails."""
    import anyio

    done = await anyio.run_process(self_command.command(*words), check=False, stdin=subprocess.DEVNULL)  # our own is the client's
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip().removeprefix("pytrace-ebpf: ") or f"{words[0]} ended with {done.returncode}")
    return _short(done.stdout.decode())


def _rows(by: str, top: int) -> tuple[str, ...]:
    return ("--by", by, "--top", str(max(1, min(top, _MOST_ROWS))))


def _short(text: str) -> str:
    if len(text) > _MOST:
        raise ValueError(f"the answer has {len(text):,} characters: ask for fewer rows, or for a shorter time")
    return text
