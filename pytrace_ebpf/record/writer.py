"""Writes closed segments as Parquet parts, in its own thread, and replaces the manifest atomically after each."""

import ctypes
import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.errors import HostError, UsageError
from pytrace_ebpf.record.user import hand_over
from pytrace_ebpf.trace import schema

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_PENDING = 4  # segments that may wait for the disk before the recording waits too


class Writer:
    """Owns a trace directory while it is recorded. `manifest` is the dictionary written after every segment."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory
        self.manifest = manifest
        manifest["segments"] = []
        _claim(directory)
        _keep_freed_memory()
        self._write_manifest()
        self._thread = ThreadPoolExecutor(1, "writer")
        self._pending: list[Future[None]] = []

    def segment(self, start_ns: int, end_ns: int, tables: Mapping[str, pa.Table], news: dict[str, Any]) -> None:
        """Hand over one segment: its parts are written, then the manifest names it, updated by `news`.

        Raises HostError where an earlier segment could not be written.
        """
        while self._pending and (self._pending[0].done() or len(self._pending) >= _PENDING):
            self._settle()
        self._pending.append(self._thread.submit(self._write, start_ns, end_ns, dict(tables), news))

    def abandon(self) -> None:
        """Remove the trace directory: nothing was recorded."""
        self._thread.shutdown()
        shutil.rmtree(self.directory, ignore_errors=True)

    def close(self, news: dict[str, Any]) -> None:
        """Wait for all segments and write the last manifest."""
        try:
            while self._pending:
                self._settle()
        finally:
            self._thread.shutdown()
        self.manifest.update(news)
        self._write_manifest()
        hand_over(self.directory)

    def _settle(self) -> None:
        try:
            self._pending.pop(0).result()
        except OSError as error:
            raise HostError(
                f"the trace could not be written any further ({error.strerror or error}); "
                f"what was recorded until then is in {self.directory}"
            ) from error

    def _write(self, start_ns: int, end_ns: int, tables: Mapping[str, pa.Table], news: dict[str, Any]) -> None:
        index = len(self.manifest["segments"])
        for name, table in tables.items():
            if table.num_rows:
                _write_part(self.directory / name / f"part-{index:05}.parquet", table)
        self.manifest["segments"].append(
            {
                "index": index,
                "start_ns": start_ns,
                "end_ns": end_ns,
                "rows": {name: table.num_rows for name, table in tables.items() if table.num_rows},
            }
        )
        self.manifest.update(news)
        self._write_manifest()

    def _write_manifest(self) -> None:
        temporary = self.directory / (schema.MANIFEST + ".new")
        with temporary.open("w") as file:
            json.dump(self.manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.directory / schema.MANIFEST)


# Columns that lz4 alone makes nearly as small as a dictionary would: half of the writer's time for a quarter more bytes.
_REPETITIVE = ("pid", "tid", "kind", "func_id", "line")


def _keep_freed_memory() -> None:
    """Every segment needs the same large arrays again: returned to the kernel, each of their pages would fault anew.

    Saves a tenth of the collector's time (scripts/bench/record.py).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        pa.set_memory_pool(pa.system_memory_pool())


def _claim(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty; give another folder with --output")
        for table in schema.TABLES.values():
            if not table.derived:
                (directory / table.name).mkdir()
    except OSError as error:
        raise UsageError(f"cannot write to {directory} ({error.strerror}); give another folder with --output") from error


def _write_part(path: Path, table: pa.Table) -> None:
    integers = [field.name for field in table.schema if field.name in ("ts", "start_ns", "end_ns")]
    pq.write_table(
        table,
        path,
        compression="lz4",  # a fifth less of the writer's CPU than zstd at level 1, for 4 % more bytes
        use_dictionary=[name for name in table.column_names if name not in integers and name not in _REPETITIVE],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in ("ts", "pid", "tid") if name in table.column_names],
    )
