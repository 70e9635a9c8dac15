"""Whether a trace is as it was recorded: every part that the list of segments names is read, and compared with its checksum."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.parts import Part, opened, reading
from pytrace_ebpf.trace.schema import TABLES
from pytrace_ebpf.trace.segments import parts_of


class Verified(NamedTuple):
    """How many parts are as they were written, how many bytes they have, and how many have no checksum: of a trace from before there were any."""

    parts: int
    bytes: int
    unsealed: int


def verify(files: Files, manifest: Mapping[str, Any]) -> Verified:
    """Of the trace in `files`. Raises TraceError for a part that is missing, or is not what was written."""
    parts = [
        Part(files, name, part, rows, False, sum_)
        for name, table in TABLES.items()
        if not table.derived
        for part, rows, sum_ in parts_of(name, manifest["segments"], manifest["merged"].get(name, []), whole=True)
    ]
    size = 0
    for part in parts:
        with reading(part), ExitStack() as stack:
            opened(part, stack)
            size += part.files.folder(part.folder).size(part.name)
    return Verified(len(parts), size, sum(part.sum is None for part in parts))
