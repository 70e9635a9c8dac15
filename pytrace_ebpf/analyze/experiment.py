"""The directory of an experiment: its manifest and its data set, one row per setting, repeat and call path."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pytrace_ebpf.analyze.experiment_paths import CALLS, TIMES, by_path
from pytrace_ebpf.errors import TraceError
from pytrace_ebpf.trace.reader import Trace

FORMAT, FORMAT_VERSION = "pytrace-ebpf experiment", 1
MANIFEST, DATASET, TRACES = "experiment.json", "calls-by-path", "traces"

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
        pq.write_table(pa.Table.from_pandas(rows, SCHEMA, preserve_index=False), part, compression="zstd")
        self.runs.append(
            {
                "setting": setting,
                "repeat": repeat,
                "trace": str(trace.directory.relative_to(self.directory)),
                "log": str(log.relative_to(self.directory)),
                "wall_ns": _life_ns(trace),
                "calls": int(rows["calls"].sum()),
                "lost": sum(int(count) for count in trace.manifest["lost"].values()),
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
        fresh = self.directory / f".{MANIFEST}"
        fresh.write_text(json.dumps(manifest, indent=1))
        fresh.rename(self.directory / MANIFEST)

    def rows(self, run: Mapping[str, Any], columns: Sequence[str]) -> pd.DataFrame:
        """The rows of one run, columns of SCHEMA; times are Int64, pd.NA where nobody measured. Raises TraceError."""
        part = self._part(run)
        try:
            table = ds.dataset(part, schema=SCHEMA).to_table(columns=list(columns))
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
        manifest = json.loads((directory / MANIFEST).read_text())
        if manifest["format"] != FORMAT or manifest["format_version"] > FORMAT_VERSION:
            raise ValueError(manifest["format"])
        found = Experiment(directory, *(manifest[name] for name in ("command", "settings", "runs")))
    except (OSError, ValueError, TypeError, KeyError):
        raise TraceError(f"{directory} is no experiment: name the directory that pytrace-ebpf experiment wrote.") from None
    if not found.runs:
        raise TraceError(f"{directory} has no finished run: run the experiment again.")
    return found


def _life_ns(trace: Trace) -> int:
    """How long the program ran, its interpreter's start included; where its end was not seen, until that of the recording."""
    processes = trace.processes()
    row = processes[processes["pid"] == trace.manifest["target"]["pid"]].iloc[0]
    return int((row["end_ns"] if pd.notna(row["end_ns"]) else trace.end_ns) - row["start_ns"])
