"""A gzipped profile.proto, for pprof, Pyroscope, Parca and what else reads it: own time by stack and thread, split four ways.

Each way is a sample type of its own (-sample_index=gil_wait). Field numbers: github.com/google/pprof/blob/main/proto/profile.proto
"""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.printable import printable
from pytrace_ebpf.view.export.contexts import Contexts, of_trace
from pytrace_ebpf.view.export.numbered import Strings, grouped
from pytrace_ebpf.view.export.protobuf import Packed, Piece, data, messages, nested, number, width
from pytrace_ebpf.view.identities import identified

SUFFIX = ".pb.gz"
_COMPRESSION = 6
_LABELS = ("service.name", "service.version", "k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "container.id")
Resources = Mapping[int, Mapping[str, str | int]]


@dataclass(frozen=True)
class Span:
    """When a profile was taken: the time of day, ns since 1970 (0 not known), how long, ns, and what a sample stands for, ns (0: none were taken)."""

    unix_ns: int
    duration_ns: int
    period_ns: int = 0

    @classmethod
    def of(cls, trace: Any) -> "Span":
        """That of a trace, or of a window of it."""
        anchor = (trace.manifest.get("clock") or [{}])[0]
        realtime = anchor.get("realtime_ns")
        begun = 0 if realtime is None else max(0, int(realtime) + trace.start_ns - int(anchor["monotonic_ns"]))
        return cls(begun, trace.end_ns - trace.start_ns, period_of(trace) or 0)


def write(trace: Any, out: BinaryIO) -> None:
    """Write `trace` or a window of it."""
    program = str((trace.manifest.get("target") or {}).get("executable") or "python")
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=_COMPRESSION, mtime=0) as packed:
        said = {int(row["pid"]): identified(row) for row in trace.processes().to_dict("records")}
        packed.writelines(profile(of_trace(trace), Span.of(trace), program, said))


def profile(contexts: Contexts, span: Span, program: str, resources: Resources | None = None) -> Iterator[bytes | memoryview]:
    """The Profile message, piece by piece, not compressed yet. `program`: the file that ran; `resources`: by process its attributes, of which some are labels."""
    strings = Strings()
    types = [(name, "nanoseconds" if i else "count") for i, name in enumerate(contexts.values)]
    yield from (data(1, _type(strings, *each)) for each in types)
    yield from _samples(contexts, strings, resources or {})
    # The locations have names, so that nobody looks for symbols in this file.
    yield data(3, number(1, 1) + number(5, strings.number(printable(program))) + b"".join(number(has, 1) for has in (7, 8, 9)))
    yield from _places(contexts, strings)
    yield number(9, span.unix_ns) + number(10, span.duration_ns)
    if span.period_ns:
        yield data(11, _type(strings, "wall", "nanoseconds")) + number(12, span.period_ns)
    yield number(13, strings.number(f"pytrace-ebpf {pytrace_ebpf.__version__}")) + number(14, strings.number("wall"))
    yield from (data(6, text) for text in strings)


def _type(strings: Strings, name: str, unit: str) -> bytes:
    return number(1, strings.number(name)) + number(2, strings.number(unit))


def _samples(contexts: Contexts, strings: Strings, resources: Resources) -> Iterator[memoryview]:
    """Sample messages; those with stacks of one depth have one size."""
    labels = _labels(contexts, strings, resources)
    values = np.stack(list(contexts.values.values()), axis=1)
    location, value = width(len(contexts.places)), width(int(values.max(initial=0)))
    for rows, places in contexts.stacks(contexts.rows()):
        for thread, own in grouped(contexts.thread[rows]):
            sample: list[Piece] = [Packed(1, location, places[own] + 1), Packed(2, value, values[rows[own]]), *labels[thread]]
            yield messages(nested(2, sample), len(own)).data


def _labels(contexts: Contexts, strings: Strings, resources: Resources) -> list[list[bytes]]:
    """The labels of each thread's samples: pid and tid, as numbers, so that -tagfocus=tid=4711 finds them, thread, and who its process is."""
    out = []
    for pid, tid, name in contexts.threads.itertuples(index=False):
        ids = [(strings.number(key), value) for key, value in (("pid", pid), ("tid", tid)) if value >= 0]
        said = strings.number(printable(name) if isinstance(name, str) else f"thread {tid}")
        numbers = [data(3, number(1, key) + number(3, int(value))) for key, value in ids]
        whose = resources.get(int(pid), {})
        texts = [(strings.number(key), strings.number(str(whose[key]))) for key in _LABELS if whose.get(key)]
        out.append([*numbers, *(data(3, number(1, key) + number(2, text)) for key, text in ((strings.number("thread"), said), *texts))])
    return out


def _places(contexts: Contexts, strings: Strings) -> Iterator[bytes]:
    """A Location for each place, with a Function for each that differs in more than the line."""
    functions: dict[int, int] = {}
    for at, row in enumerate(contexts.places.itertuples(index=False), 1):
        name, file, first = strings.number(printable(row.name)), strings.number(printable(row.file)), max(0, int(row.first_line))
        key = (name << 32 | file) << 32 | first  # one object each: there may be a million
        if key not in functions:
            functions[key] = len(functions) + 1
            yield data(5, number(1, functions[key]) + number(2, name) + number(3, name) + number(4, file) + number(5, first))
        line = number(1, functions[key]) + (number(2, int(row.line)) if row.line > 0 else b"")
        yield data(4, number(1, at) + number(2, 1) + data(4, line))
