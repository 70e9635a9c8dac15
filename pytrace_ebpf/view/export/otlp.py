"""OpenTelemetry's profiles as a Collector takes them: an ExportProfilesServiceRequest of own time by stack and thread, split four ways.

A resource for each process, and in it a profile for each way, which share the stacks. This signal is still in development: field numbers are those of
opentelemetry/proto/profiles/v1development/profiles.proto as the package opentelemetry-proto has it since 1.43. Attributes are those of the semantic
conventions, without the command line, which may hold secrets. Memory is bounded by the rows of the tree.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

import pytrace_ebpf
from pytrace_ebpf.analyze.functions.by_function import unknown
from pytrace_ebpf.analyze.requests.one_request import one_request
from pytrace_ebpf.printable import printable
from pytrace_ebpf.services import service_of
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.view.export.contexts import Contexts, of_trace, of_tree
from pytrace_ebpf.view.export.numbered import Strings, grouped
from pytrace_ebpf.view.export.pprof import Span
from pytrace_ebpf.view.export.protobuf import Fixed, Packed, Slot, data, messages, nested, number, varint, width
from pytrace_ebpf.view.identities import identified

SUFFIX = ".otlp"
_BY_INTERPRETER = ("python", "gc", "import")  # of `functions.function_layer`: what the interpreter does

Ints = npt.NDArray[np.int64]
Attributes = Mapping[str, str | int]


def write(trace: Any, out: BinaryIO) -> None:
    """Write `trace` or a window of it."""
    out.writelines(request(of_trace(trace), Span.of(trace), _resources(trace)))


def write_request(trace: Any, row: dict[str, Any], out: BinaryIO) -> None:
    """Write one request (a row of schema.REQUESTS) of a trace, each sample with a link to its span."""
    tree = one_request(trace, row).tree.assign(pid=row["pid"], tid=row["tid"])
    tree = tree.assign(unknown_ns=unknown(tree, "total_ns"), self_unknown_ns=unknown(tree, "self_ns", "self_"))
    span = Span.of(trace.window(row["start_ns"], row["end_ns"]))
    parts = [part for part in ("ns", *SPLIT) if tree[f"self_{part}"].notna().any()]
    out.writelines(request(of_tree(tree, trace.functions(), trace.threads(), parts), span, _resources(trace), _link(row)))


def _link(request: dict[str, Any]) -> bytes:
    """A Link to the span of a request; nothing where it has none."""
    trace_id, span_id = request["trace_id"], request["span_id"]
    return data(1, bytes.fromhex(trace_id)) + data(2, bytes.fromhex(span_id)) if isinstance(trace_id, str) else b""


def _resources(trace: Any) -> dict[int, Attributes]:
    host = str((trace.manifest.get("host") or {}).get("hostname", ""))
    return {int(row["pid"]): resource(row, host) for row in trace.processes().to_dict("records")}


def resource(process: Mapping[str, Any], host: str = "") -> Attributes:
    """The attributes of a process, a row of schema.PROCESSES; those that are not known are left out. A service without a name has that of its script or module."""
    executable, python = process["executable"], process["python_version"]
    version = python if isinstance(python, str) else ""
    found: dict[str, str | int] = {
        "service.name": service_of(process) or "unknown_service", "process.pid": int(process["pid"]),
        "process.executable.name": PurePosixPath(executable).name if isinstance(executable, str) else "",
        "process.executable.path": executable, "process.runtime.name": "cpython" if version else "",
        "process.runtime.version": version, "host.name": host,
    }  # fmt: skip
    known = {key: printable(value) if isinstance(value, str) else value for key, value in found.items() if value}
    return identified(process) | known


def request(contexts: Contexts, span: Span, resources: Mapping[int, Attributes], link: bytes = b"") -> Iterator[bytes | bytearray]:
    """The message, piece by piece. `resources`: of each process its attributes; `link`: a Link that each sample has."""
    tables = _Tables(contexts, link)
    pid = contexts.threads["pid"].to_numpy(np.int64)
    scope = data(1, data(1, "pytrace-ebpf") + data(2, pytrace_ebpf.__version__))
    for process, own in grouped(pid[contexts.thread]):
        profiles = [_profile(contexts, own, name, span, tables) for name in contexts.values]
        if not any(profiles):
            continue
        attributes = resources.get(process, {"process.pid": process} if process >= 0 else {})
        yield from _message(
            1, [data(1, b"".join(data(1, _key_value(*each)) for each in attributes.items())), *_message(2, [scope, *filter(None, profiles)])]
        )
    yield from _message(2, tables.pieces())


def _profile(contexts: Contexts, own: Ints, name: str, span: Span, tables: "_Tables") -> bytes:
    """The ScopeProfiles.profiles field of one value of the contexts `own`; nothing where it is 0 in all."""
    values = contexts.values[name][own]
    rows, values = own[values != 0], values[values != 0]
    if not len(rows):
        return b""
    stack, thread = tables.stack[rows], contexts.thread[rows]
    samples = b"".join(
        messages(
            nested(
                2,
                [
                    Slot(1, width(len(tables.stack)), stack[mine]),
                    data(2, b"".join(varint(each) for each in tables.of_thread[one] if each)) + (number(3, 1) if tables.link else b""),
                    Packed(4, width(int(values.max())), values[mine][:, None]),
                ],
            ),
            len(mine),
        ).tobytes()
        for one, mine in grouped(thread)
    )
    fixed = messages([Fixed(3, np.array([span.unix_ns]))], 1).tobytes() + number(4, span.duration_ns)
    if span.period_ns:
        fixed += data(5, tables.type("wall", "nanoseconds")) + number(6, span.period_ns)
    kind = data(1, tables.type(name, "count" if name == next(iter(contexts.values)) else "nanoseconds"))
    same = blake2b(fixed + kind + samples, digest_size=16).digest()  # of one profile that comes twice
    return b"".join(_message(2, [kind, samples, fixed, data(7, same)]))


class _Tables:
    """The dictionary: every table begins with an empty element. `stack` has the number of each context's, `of_thread` each thread's attributes."""

    def __init__(self, contexts: Contexts, link: bytes) -> None:
        self.link = link
        self._contexts, self._strings = contexts, Strings()
        self._attributes: dict[bytes, int] = {b"": 0}
        self.of_thread = [
            [
                self._attribute("thread.id", int(tid)) if tid >= 0 else 0,
                self._attribute("thread.name", printable(name) if isinstance(name, str) else ""),
            ]
            for tid, name in contexts.threads[["tid", "name"]].itertuples(index=False)
        ]
        same = contexts.same()
        used = np.unique(same[contexts.rows()])
        self._order = used[np.argsort(contexts.depth[used], kind="stable")]  # as Contexts.stacks has them
        number_of = np.zeros(len(same), np.int64)
        number_of[self._order] = 1 + np.arange(len(self._order))
        self.stack = number_of[same]

    def type(self, name: str, unit: str) -> bytes:
        """A ValueType."""
        return number(1, self._strings.number(name)) + number(2, self._strings.number(unit))

    def pieces(self) -> Iterator[bytes]:
        """The fields of the ProfilesDictionary."""
        yield from (data(field, b"") for field in (1, 2, 3, 4, 7))
        if self.link:
            yield data(4, self.link)
        yield from self._places()
        for _, places in self._contexts.stacks(self._order):
            wide = width(len(self._contexts.places))
            yield messages(nested(7, [Packed(1, wide, places + 1)]), len(places)).tobytes()
        yield from (data(6, attribute) for attribute in self._attributes)
        yield from (data(5, text) for text in self._strings)

    def _places(self) -> Iterator[bytes]:
        functions: dict[int, int] = {}
        for row in self._contexts.places.itertuples(index=False):
            name, file, first = self._strings.number(printable(row.name)), self._strings.number(printable(row.file)), max(0, int(row.first_line))
            key = (name << 32 | file) << 32 | first  # one object each: there may be a million
            if key not in functions:
                functions[key] = len(functions) + 1
                yield data(3, number(1, name) + (number(3, file) if file else b"") + number(4, first))
            line = number(1, functions[key]) + (number(2, int(row.line)) if row.line > 0 else b"")
            kind = self._attribute("profile.frame.type", "cpython" if row.layer in _BY_INTERPRETER else "native") if row.layer else 0
            yield data(2, data(3, line) + (data(4, varint(kind)) if kind else b""))

    def _attribute(self, key: str, value: str | int) -> int:
        if value == "":
            return 0
        attribute = number(1, self._strings.number(key)) + data(2, _value(value))
        return self._attributes.setdefault(attribute, len(self._attributes))


def _key_value(key: str, value: str | int) -> bytes:
    return data(1, key) + data(2, _value(value))


def _value(value: str | int) -> bytes:
    return number(3, value) if isinstance(value, int) else data(1, value)


def _message(field: int, pieces: Iterable[bytes | bytearray]) -> list[bytes | bytearray]:
    """A sub-message of these pieces."""
    whole = bytearray()  # most are a few bytes
    for piece in pieces:
        whole += piece
    return [varint(field << 3 | 2) + varint(len(whole)), whole]
