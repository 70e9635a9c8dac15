"""The manifest of a trace directory: read it and judge whether it is one of ours."""

import json
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.schema import FORMAT, FORMAT_VERSION, MANIFEST

_SHAPE: dict[str, type | tuple[type, ...]] = {
    "state": str,
    "start_ns": int,
    "end_ns": (int, type(None)),
    "clock": list,
    "host": dict,
    "target": dict,
    "argv": list,
    "options": dict,
    "sources": list,
    "events": dict,
    "lost": dict,
    "cost": dict,
    "segments": list,
}


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of the trace in `directory`, checked.

    `end_ns`, null while recording, is filled with the end of the last segment.
    Raises TraceError when there is none, it is damaged, not ours, or of a newer format.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise TraceError(f"{directory} is not a directory: name the directory that run or attach wrote.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{directory} is not a trace: it has no {MANIFEST}; name the directory that run or attach wrote.") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise TraceError(f"{path} is damaged: it is not JSON; record the trace again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TraceError(f"{directory} is not a trace of {FORMAT}: its {MANIFEST} was written by something else.")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise TraceError(f"{directory} has trace format {version}, this {FORMAT} reads up to {FORMAT_VERSION}: upgrade it.")
    _check_shape(path, manifest)
    if manifest["end_ns"] is None:
        manifest["end_ns"] = manifest["segments"][-1]["end_ns"] if manifest["segments"] else manifest["start_ns"]
    return manifest


def _check_shape(path: Path, manifest: dict[str, Any]) -> None:
    for key, kind in _SHAPE.items():
        if not isinstance(manifest.get(key), kind) or (key == "end_ns" and key not in manifest):
            raise TraceError(f"{path} is damaged: its {key} is missing or of the wrong kind; record the trace again.")
    for segment in manifest["segments"]:
        fits = isinstance(segment, dict) and isinstance(segment.get("rows"), dict)
        if not fits or not all(isinstance(segment.get(k), int) for k in ("index", "start_ns", "end_ns")):
            raise TraceError(f"{path} is damaged: one of its segments is malformed; record the trace again.")
    manifest["segments"].sort(key=lambda s: s["index"])
