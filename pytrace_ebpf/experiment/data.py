"""The directory of an experiment: its manifest and its data set, one row per setting, repeat and call path."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.experiment.paths import CALLS, TIMES, by_path
from pytrace_ebpf.trace.files import Files, whole
from pytrace_ebpf.trace.losses import PARTLY
from pytrace_ebpf.trace.parts import Part, opened
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.shape import WHOLE, Fields, List, Maybe, fits

FORMAT, FORMAT_VERSION = "pytrace-ebpf experiment", 1
MANIFEST, DATASET, TRACES = "experiment.json", "calls-by-path", "traces"

_MOST_BYTES = 64 << 20
_SHAPE = Fields(
    {
        "command": List(str),
        "settings": List(Fields({"setting": str, "cpus": Maybe(List(WHOLE)), "threads": Maybe(WHOLE), "cores": WHOLE})),
        "runs": List(Fields({"setting": str, "repeat": WHOLE, "trace": str, "log": str, "wall_ns": WHOLE, "calls": WHOLE, "lost": WHOLE})),
    }
)

_WHOLE = ("path_id", "parent_path_id", "calls")  # never null
_TIMES = [f"{prefix}{name}" for prefix in ("", "self_") for name in TIMES]
SCHEMA = pa.schema(
    [
        ("setting", pa.dictionary(pa.int32(), pa.string())),
        ("repeat", pa.int32()),
        ("path_id", pa.int64()),
        ("parent_path_id", pa.int64()),
        ("depth", pa.int32()),
        ("layer", pa.dictionary(pa.int32(), pa.string())),
        ("module", pa.dictionary(pa.int32(), pa.string())),
        ("qualname", pa.dictionary(pa.int32(), pa.string())),
        ("first_line", pa.int32()),
        ("file", pa.dictionary(pa.int32(), pa.string())),
        ("calls", pa.int64()),
        *((name, pa.int64()) for name in _TIMES),
    ]
)


@dataclass
class Experiment:
    """An experiment: `directory` and its manifest's `command`, `settings` and `runs`, plain rows.

    settings: setting (its name), cpus (list or null), threads (or null), cores; the first is what others are compared with.
    runs: setting, repeat (from 1), trace and log (paths below the directory), wall_ns, calls, lost.
    """

    directory: Path
    command: list[str]
    settings: list[dict[str, Any]]
    runs: list[dict[str, Any]]

    def add(self, trace: Trace, setting: str, repeat: int, log: Path) -> None:
        """Sum one recorded run by call path, write its part of the data set, and name it in the manifest."""
        rows = by_path(trace.calls(columns=list(CALLS)), trace.functions())
        rows = rows.assign(setting=setting, repeat=repeat)
        (self.directory / DATASET).mkdir(exist_ok=True)
        part = self._part({"setting": setting, "repeat": repeat})
        with whole(part) as file:
            pq.write_table(pa.Table.from_pandas(rows, SCHEMA, preserve_index=False), file, compression="zstd")
        self.runs.append(
            {
                "setting": setting,
                "repeat": repeat,
                "trace": str(trace.directory.relative_to(self.directory)),
                "log": str(log.relative_to(self.directory)),
                "wall_ns": _life_ns(trace),
                "calls": int(rows["calls"].sum()),
                "lost": sum(int(count) for name, count in trace.manifest["lost"].items() if name not in PARTLY),
            }
        )
        self.save()

    def save(self) -> None:
        """Replace the manifest."""
        manifest = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "command": self.command,
            "settings": self.settings,
            "runs": self.runs,
        }
        with whole(self.directory / MANIFEST) as file:
            file.write(json.dumps(manifest, indent=1).encode())

    def rows(self, run: Mapping[str, Any], columns: Sequence[str]) -> pd.DataFrame:
        """The rows of one run, columns of SCHEMA; times are Int64, pd.NA where not measured. Raises TraceError."""
        part = self._part(run)
        try:
            with ExitStack() as stack:
                fragment = opened(Part(Files(self.directory), DATASET, part.name), stack)
                table = fragment.to_table(SCHEMA, list(columns))
                table.validate(full=True)
        except (OSError, pa.ArrowException) as error:
            raise TraceError(f"{part} does not open: the experiment is damaged; run it again.") from error
        frame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        return frame.astype({name: "int64" for name in _WHOLE if name in frame})

    def _part(self, run: Mapping[str, Any]) -> Path:
        names = [row["setting"] for row in self.settings]
        return self.directory / DATASET / f"part-{names.index(run['setting']):03d}-{run['repeat']:03d}.parquet"


def open_experiment(directory: Path) -> Experiment:
    """The experiment in `directory`, with at least one run. Raises TraceError."""
    try:
        content, _ = Files(directory).read(MANIFEST, _MOST_BYTES)
        manifest = json.loads(content)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("format_version") != FORMAT_VERSION:
            raise ValueError(directory)
    except (OSError, ValueError, RecursionError):
        raise TraceError(f"{directory} is not an experiment: name the directory that pytrace-ebpf experiment wrote.") from None
    wrong = fits(manifest, _SHAPE)
    names = [] if wrong else [row["setting"] for row in manifest["settings"]]
    if wrong or any(run["setting"] not in names for run in manifest["runs"]):
        raise TraceError(f"{directory / MANIFEST} is damaged: its {wrong or 'runs'} is missing or of the wrong kind; run the experiment again.")
    found = Experiment(directory, *(manifest[name] for name in ("command", "settings", "runs")))
    if not found.runs:
        raise TraceError(f"{directory} has no finished run: run the experiment again.")
    return found


def _life_ns(trace: Trace) -> int:
    """How long the program ran, its interpreter's start included; where its end was not seen, until that of the recording."""
    processes = trace.processes()
    own = processes[processes["pid"] == trace.manifest["target"]["pid"]]
    if not len(own):
        return trace.end_ns - trace.start_ns
    row = own.iloc[0]
    return int((row["end_ns"] if pd.notna(row["end_ns"]) else trace.end_ns) - row["start_ns"])
