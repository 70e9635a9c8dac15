"""A trace without what may be confidential: a copy whose texts are names of functions, modules and Python's own words. All that is shown of it has no others.

Every column of text and every key of the manifest that is not listed here as harmless is left out, so what is added to the format later is, too.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from pytrace_ebpf.services import service
from pytrace_ebpf.trace.copying import Copied, Copying
from pytrace_ebpf.trace.libraries import FOLDER
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.schema import AGENT, FORMAT, FORMAT_VERSION, Table

HELP = "names of functions and modules alone: no source, arguments, command lines, environment, statements, addresses, paths, or names of hosts, threads and tasks"
NAME = "TRACE"
"""What it is called in the commands that a report names."""
_HARMLESS = {
    "functions.name", "functions.qualname", "functions.module", "functions.function_layer", "threads.interpreters", "processes.python_version", "processes.source",
    "processes.service_name", "processes.service_version", "resources.kind", "usage.kind", "usage.cpus", "losses.class", "left_out.why", "profile_waits.kind",
    "profile_waits.syscall", "client_calls.library", "client_calls.status", "opcodes.opcode", "opcodes.specialized", "opcodes.state", "arguments.dtypes",
}  # fmt: skip
"""Enumerations, and names of code."""
_KEPT = (
    "state",
    "entry_line",
    "start_ns",
    "end_ns",
    "clock",
    "events",
    "lost",
    "cost",
    "sampling",
    "dropped",
    "faults",
    "native_memory",
)  # of a manifest: numbers
_LIBRARY = re.compile(FOLDER.replace("(?:site", "((?:site", 1).removesuffix("/") + "/)")
_PLACELESS = re.compile(r"<(frozen [\w.]+|string|stdin|ipython-input-\d+-\w+)>")
_THREAD = re.compile(
    rf"MainThread|{AGENT}|(Thread|Dummy|ThreadPoolExecutor|asyncio|AnyIO|Timer)-\d+(_\d+)?( \(\w+\))?|asyncio_\d+|all threads|python[\d.]*t?"
)
_EVERYWHERE = ("0.0.0.0", "127.0.0.1", "[::]", "[::1]", "::", "::1")


class Confidential(Copied):
    """That of a trace."""

    def __init__(self, trace: Trace) -> None:
        """Raises TraceError."""
        super().__init__(trace, Hiding())
        self.directory = Path(NAME)


class Hiding(Copying):
    """Leaves out all texts but the harmless ones."""

    left_out = ("observed", "trace_contexts")

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def changes(self, spec: Table) -> bool:
        """Whether it has other texts."""
        return bool(_texts(spec))

    def rows(self, spec: Table, table: pa.Table) -> pa.Table:
        """The same without them."""
        columns = {name: table[name] for name in spec.arrow.names}
        fresh = self._of_rows(spec.name, table) if spec.name in ("processes", "resources") else {}
        for name in _texts(spec):
            columns[name] = fresh.get(name) or _mapped(columns[name], self._rule(f"{spec.name}.{name}"))
        arrays = [pa.array(made, spec.arrow.field(name).type) if isinstance(made, list) else made for name, made in columns.items()]
        return pa.table(arrays, schema=spec.arrow)

    def manifest(self, of: Mapping[str, Any]) -> dict[str, Any]:
        """As manifest()."""
        return manifest(of)

    def _rule(self, column: str) -> Callable[[str], str | None]:
        """What a text of a column becomes; of most columns nothing."""
        rules: dict[str, Callable[[str], str | None]] = {
            "functions.file": _file,
            "threads.name": _thread, "threads.comm": _thread,
            "external_switches.name": lambda _: "one that is not named", "neighbours.name": lambda _: "one that is not named",
            "client_calls.statement": lambda text: self._numbered("statement", text),
            "profile_waits.resource": lambda text: self._numbered("resource", text),
            "samples.task": lambda text: self._numbered("task", text),
        }  # fmt: skip
        return rules.get(column, lambda _: "")

    def _of_rows(self, name: str, table: pa.Table) -> dict[str, list[str | None]]:
        """Columns whose texts are made of several ones."""
        rows = table.to_pylist()
        if name == "resources":
            return {
                "name": [self._resource(row["kind"], row["name"]) for row in rows],
                "local_name": [self._address(row["local_name"]) for row in rows],
            }
        return {
            "command": [_command(row["command"], row["executable"], row["python_version"]) for row in rows],
            "executable": [_base(row["executable"]) for row in rows],
        }

    def _resource(self, kind: str, name: str) -> str:
        if not name:
            return ""
        return self._address(name) if kind in ("tcp", "udp") else self._numbered({"child": "program", "unix": "socket"}.get(kind, kind), name)

    def _address(self, name: str) -> str:
        host, sign, port = name.rpartition(":")
        if not sign or not port.isdecimal():
            return self._numbered("address", name) if name else ""
        return f"{host if host in _EVERYWHERE else self._numbered('host', host)}:{port}"

    def _numbered(self, what: str, text: str) -> str:
        """The same for the same text: host-1."""
        return f"{what}-{self._numbers.setdefault((what, text), sum(kind == what for kind, _ in self._numbers) + 1)}" if text else ""


def manifest(of: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without texts but names of formats, processors and of what a recorder was."""
    target, options, host = of["target"], of["options"], of["host"]
    command = _command(target.get("command") or "", target.get("executable") or "", target.get("python_version"))
    kept: dict[str, Any] = {name: of[name] for name in _KEPT if name in of}
    recorder = of.get("scheduling")
    return kept | {
        "format": FORMAT, "format_version": FORMAT_VERSION, "host": {name: host[name] for name in ("kernel", "machine", "cpus", "memory_bytes", "cpu_topology") if name in host},
        "target": {"pid": target["pid"], "command": command, "executable": _base(target.get("executable") or ""), "python_version": target.get("python_version")},
        "targets": [{"pid": each["pid"], "command": _command(each.get("command") or "", "", target.get("python_version"))} for each in of.get("targets") or []],
        "argv": ["pytrace-ebpf", "attach", "PID"], "ended": "it did not go on to its end" if of.get("ended") else None,
        "options": {name: _numbers(options[name]) for name in options if name not in ("observed", "requests", "operators")} | {"layers": options.get("layers")},
        "sources": [{**each, "why": "not said here"} for each in of["sources"]],
        "scheduling": recorder and {**recorder, "why": "not said here"},
    }  # fmt: skip


def _numbers(value: Any) -> Any:
    """The numbers of some options, and what lines and opcodes were recorded by; null for any other text."""
    if isinstance(value, Mapping):
        return {name: each if name in ("lines", "opcodes") else _numbers(each) for name, each in value.items()}
    return value if value is None or isinstance(value, bool | int | float) else [] if isinstance(value, list) else None


def _texts(spec: Table) -> list[str]:
    """The columns of a table whose texts are not harmless."""
    return [column.name for column in spec.columns if "string" in column.type and f"{spec.name}.{column.name}" not in _HARMLESS]


def _mapped(column: pa.ChunkedArray, rule: Callable[[str], str | None]) -> pa.ChunkedArray:
    """Each text by a rule, null as null."""
    if pa.types.is_list(column.type):
        return pa.chunked_array([pa.array([None] * len(column), column.type)])
    texts = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    codes = texts.combine_chunks().dictionary_encode()
    codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    made = pa.array([rule(text) for text in codes.dictionary.to_pylist()], pa.string()).take(codes.indices)
    return pa.chunked_array([made.dictionary_encode() if pa.types.is_dictionary(column.type) else made])


def _file(name: str) -> str:
    """A path by its folder of libraries, else its last part; relative, so that nobody looks for a source there."""
    if name.startswith("<"):
        return name if _PLACELESS.fullmatch(name) else "<code>"
    library = _LIBRARY.match(name)
    return f"./{library[1]}{name[library.end() :]}" if library else _base(name)


def _base(name: str) -> str:
    return PurePosixPath(name).name


def _command(command: str, executable: str, python: str | None) -> str:
    name = service(command, executable)
    return f"python {name}" if python and name and not name.startswith("python") else name


def _thread(name: str) -> str:
    return name if not name or _THREAD.fullmatch(name) else "thread"
