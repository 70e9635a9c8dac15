"""The list of a trace's segments: one line of JSON each in a file that only grows, so that a long recording never rewrites it.

A line is a segment (`index`, `start_ns`, `end_ns`, by table `rows`, how many `calls` were entered or open, by table the checksums of its parts, `sums`),
or says that the parts of a small table lie in one (`merged`: the table; `first`, `last`: which indices; `rows`; `sum`). It ends with a
checksum of itself, `check` (sealed.py). A killed recorder may leave a last line without its end, which counts for nothing.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.schema import MERGED_TABLES, SEGMENTS
from pytrace_ebpf.trace.sealed import holds
from pytrace_ebpf.trace.shape import MOMENT, PID, WHOLE, Each, Fields, One, fits

_MOST_BYTES = 256 << 20  # more than a million segments
SEGMENT = Fields({"index": PID, "start_ns": MOMENT, "end_ns": MOMENT, "rows": Each(WHOLE)}, {"calls": WHOLE, "sums": Each(WHOLE)})
_MERGED = Fields({"merged": One(*MERGED_TABLES), "first": PID, "last": PID, "rows": WHOLE}, {"sum": WHOLE})

Segment = dict[str, Any]
Merged = dict[str, list[Segment]]
_Part = tuple[int, int | None]  # rows, checksum


def part_name(index: int, last: int | None = None) -> str:
    """What the part of a segment is called, or that of the segments from `index` to `last`."""
    return f"part-{index:05d}.parquet" if last in (None, index) else f"part-{index:05d}-{last:05d}.parquet"


def merged_line(table: str, first: int, last: int, rows: int) -> Segment:
    """The line that says that the parts of `table` of these segments lie in one, of so many rows."""
    return {"merged": table, "first": first, "last": last, "rows": rows}


def read_segments(files: Files) -> tuple[list[Segment], Merged]:
    """The segments in the order of time, and by table its merged parts in the order of time, disjoint.

    Raises TraceError where there is no such list, or it contradicts itself.
    """
    path = files.directory / SEGMENTS
    try:
        content, _ = files.read(SEGMENTS, _MOST_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        lines = json.loads(b"[" + whole.rstrip().replace(b"\n", b",") + b"]", parse_constant=_refuse)
    except FileNotFoundError:
        raise TraceError(f"{path} is missing: the trace is damaged; record it again.") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise TraceError(f"{path} is damaged: it is not JSON line by line; record the trace again.") from None
    segments, merged = list[Segment](), Merged()
    for number, text in enumerate(whole.split(b"\n")[:-1], 1):
        if holds(text) is False:
            raise TraceError(f"{path} is damaged: line {number} is not what was written (its checksum); record the trace again.")
    for number, line in enumerate(lines, 1):
        is_merged = isinstance(line, dict) and "merged" in line
        if (wrong := fits(line, _MERGED if is_merged else SEGMENT)) is not None:
            raise TraceError(f"{path} is damaged: the {wrong or 'whole'} of line {number} is missing or of the wrong kind; record the trace again.")
        line.pop("check", None)
        if not is_merged:
            segments.append(line)
        elif not put_merged(merged.setdefault(line["merged"], []), line):
            raise TraceError(f"{path} is damaged: line {number} contradicts one before; record the trace again.")
    for ranges in merged.values():
        ranges.sort(key=lambda each: each["first"])
    if len({segment["index"] for segment in segments}) < len(segments):
        raise TraceError(f"{path} is damaged: it names a segment twice; record the trace again.")
    return segments, merged


def put_merged(ranges: list[Segment], fresh: Segment) -> bool:
    """Put a merged part in the place of those that it was made of, the last ones; False where it overlaps another."""
    while ranges and fresh["first"] <= ranges[-1]["first"] and ranges[-1]["last"] <= fresh["last"]:
        ranges.pop()
    if fresh["last"] < fresh["first"] or fresh["first"] < 0 or (ranges and ranges[-1]["last"] >= fresh["first"]):
        return False
    ranges.append(fresh)
    return True


def parts_of(name: str, segments: Iterable[Mapping[str, Any]], merged: Sequence[Mapping[str, Any]], whole: bool) -> list[tuple[str, int, int | None]]:
    """(file, rows, checksum or None) of the parts of table `name` that hold the rows of `segments`, in the order of time.

    `whole`: with those of segments that are not in the trace any more, first.
    """
    firsts = [each["first"] for each in merged]
    own, held = dict[str, _Part](), {part_name(each["first"], each["last"]): (each["rows"], each.get("sum")) for each in merged}
    for segment in segments:
        index = segment["index"]
        at = bisect_right(firsts, index) - 1
        if at >= 0 and index <= merged[at]["last"]:
            part = part_name(merged[at]["first"], merged[at]["last"])
            own[part] = held[part]
        elif segment["rows"].get(name):
            own[part_name(index)] = segment["rows"][name], segment.get("sums", {}).get(name)
    listed = [*([each for each in held.items() if each[0] not in own] if whole else []), *own.items()]
    return [(part, *of_part) for part, of_part in listed]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
