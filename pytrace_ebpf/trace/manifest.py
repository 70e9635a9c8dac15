"""The manifest of a trace directory: read it and judge whether it is one of ours, down to its last value."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.files import Files
from pytrace_ebpf.trace.schema import CALLER, FORMAT, FORMAT_VERSION, MANIFEST
from pytrace_ebpf.trace.sealed import holds
from pytrace_ebpf.trace.segments import SEGMENT, read_segments
from pytrace_ebpf.trace.shape import MOMENT, NUMBER, PID, WHOLE, Each, Fields, List, Maybe, One, fits

_MOST_BYTES = 256 << 20  # some ten times the manifest of a week with ten thousand processes
_COUNTS = Each(WHOLE)
_DROPPED = Fields({"segments": WHOLE, "bytes": WHOLE})
_FILTERS = Fields({}, {"lines": Maybe(str), "opcodes": Maybe(str), "include": List(str), "exclude": List(str), "max_depth": WHOLE, "c_calls": bool})
_OBSERVED = Fields({"args": List(str), "redact": List(str)})
_CAME_TRUE = Fields(
    {"condition": str, "ts": MOMENT, "pid": PID, "tid": PID, "func_id": PID, "name": str, "count": WHOLE},
    {"start_ns": MOMENT, "end_ns": MOMENT, "waited_ns": WHOLE},
)
_TRIGGER = Fields({**_CAME_TRUE.needed, "more": List(_CAME_TRUE), "unlisted": WHOLE, "skipped": Each(WHOLE)}, _CAME_TRUE.more)
_SAMPLING = Fields({"period_ns": NUMBER}, {"off_core": WHOLE, "states": WHOLE, "summed_ns": WHOLE, "off_period_ns": NUMBER})
# What stands here is all that analyses and views may read of a manifest; what else is in one is shown at most.
SHAPE = Fields(
    {
        "state": One("recording", "complete"),
        "start_ns": MOMENT,
        "end_ns": Maybe(MOMENT),
        "clock": List(Fields({"monotonic_ns": MOMENT}, {"realtime_ns": Maybe(MOMENT)})),
        "host": Fields(
            {},
            {
                "hostname": str, "kernel": str, "machine": str, "cpus": WHOLE, "memory_bytes": WHOLE,
                "cpu_topology": List(Fields({"cpu": PID, "core": PID, "package": PID})),
            },
        ),
        "target": Fields({"pid": PID}, {"command": Maybe(str), "executable": Maybe(str), "python_version": Maybe(str)}),
        "argv": List(str),
        "options": Fields({}, {"layers": Maybe(List(str)), "requests": Maybe(List(str)), "observed": Maybe(_OBSERVED), "filters": Maybe(_FILTERS)}),
        "sources": List(Fields({"source": Maybe(str), "why": str}, {"pid": Maybe(PID), "others": WHOLE, "threads_taken": WHOLE})),
        "events": _COUNTS,
        "lost": _COUNTS,
        "cost": Fields(
            {},
            {
                "source": Maybe(str), "ns_per_call": Maybe(NUMBER), "ns_per_line": Maybe(NUMBER), "waited_ns": WHOLE,
                "native_ns_per_call": Maybe(NUMBER), "native_own_ns": Maybe(NUMBER), "sampling_ns": WHOLE,
                "loop_ns_per_call": NUMBER, "timed": WHOLE, "code_ns": WHOLE,
                "calls": WHOLE, "spent_ns": WHOLE, "cpu_ns": WHOLE, "own_ns": WHOLE,
            },
        ),
    },
    {
        "entry_line": Maybe(One(CALLER)),
        "scheduling": Maybe(Fields({"source": Maybe(One("bpf", "perf", "cputime")), "why": str}, {"throttling": WHOLE, "external_switches": WHOLE})), "ended": Maybe(str),
        "sampling": Maybe(_SAMPLING), "dropped": Maybe(_DROPPED), "targets": List(Fields({"pid": PID}, {"command": Maybe(str)})),
        "trigger": Maybe(_TRIGGER), "left_alone": List(Fields({"user": WHOLE, "times": WHOLE})),
        "patterns": Maybe(List(Fields({"option": str, "pattern": str, "fits": WHOLE, "known": WHOLE, "nearest": List(str)}))),
        **{name: Maybe(shape) for stream in STREAMS for name, shape in stream.metadata.items()},
    },
)  # fmt: skip
_LISTED = List(SEGMENT)  # version 1


def open_directory(directory: Path) -> Files:
    """The directory of a trace. Raises TraceError where there is none."""
    try:
        return Files(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise TraceError(f"{directory} is not a directory: name the directory that run or attach wrote.") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{directory} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def read_manifest(files: Files) -> tuple[dict[str, Any], float]:
    """The manifest of the trace in `files`, checked, and when it was written (s since 1970).

    `segments` and `merged` are filled with what trace.segments.read_segments gives. `start_ns` is that of the first segment, which
    is later than the recording's where old ones were dropped (`dropped`, with its `wall_ns`); `end_ns`, null while recording, the end of the last one.
    Raises TraceError when there is none, it is damaged, not ours, or of a newer format.
    """
    directory = files.directory
    path = directory / MANIFEST
    try:
        content, written_at = files.read(MANIFEST, _MOST_BYTES)
        manifest = json.loads(content.decode(), parse_constant=_refuse)
        is_sealed = holds(content)
    except FileNotFoundError:
        raise TraceError(f"{directory} is not a trace: it has no {MANIFEST}; name the directory that run or attach wrote.") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise TraceError(f"{path} is damaged: it is not JSON; record the trace again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TraceError(f"{directory} is not a trace of {FORMAT}: its {MANIFEST} was written by something else.")
    if is_sealed is False:
        raise TraceError(f"{path} is damaged: it is not what was written (its checksum); record the trace again.")
    manifest.pop("check", None)
    version = manifest.get("format_version")
    if type(version) is not int or version > FORMAT_VERSION:
        raise TraceError(f"{directory} has trace format {json.dumps(version)[:20]}, this {FORMAT} reads up to {FORMAT_VERSION}: upgrade it.")
    _check(path, manifest, SHAPE)
    if version == 1:
        _check(path, {"segments": manifest.get("segments")}, Fields({"segments": _LISTED}))
        segments, manifest["merged"] = sorted(manifest["segments"], key=lambda segment: segment["index"]), {}
        if len({segment["index"] for segment in segments}) < len(segments):
            raise TraceError(f"{path} is damaged: it names a segment twice; record the trace again.")
        manifest["segments"] = segments
    else:
        manifest["segments"], manifest["merged"] = segments, _ = read_segments(files)
    began_ns = manifest["start_ns"]
    if segments:
        manifest["start_ns"] = max(began_ns, segments[0]["start_ns"])
    if manifest.get("dropped"):
        manifest["dropped"]["wall_ns"] = manifest["start_ns"] - began_ns
    if manifest["end_ns"] is None:
        manifest["end_ns"] = segments[-1]["end_ns"] if segments else manifest["start_ns"]
    return manifest, written_at


def _check(path: Path, manifest: dict[str, Any], shape: Fields) -> None:
    if wrong := fits(manifest, shape):
        raise TraceError(f"{path} is damaged: its {wrong} is missing or of the wrong kind; record the trace again.")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def machine_of(manifest: Mapping[str, Any]) -> str:
    """What `uname -m` said where a trace was recorded; "" where it does not say."""
    return str(manifest.get("host", {}).get("machine", ""))
