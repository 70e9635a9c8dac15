"""Random records and columns through the library that decodes the ones and packs the others.

Run by test_rebuild_fuzz.py, with the library to load, and seeds from and to.
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pytrace_ebpf.rebuild import decoding, library
from pytrace_ebpf.record.output.events_part import write_events
from pytrace_ebpf.trace.schema import EVENTS, CallKind
from tests.unit.slow_decoding import decoded

RECORD = np.dtype([("stamp_line", "u8"), ("what", "u8")])
EXTREME = np.array([0, 1, 1 << 47, (1 << 47) - 1, (1 << 48) - 1, 1 << 62, (1 << 64) - 1], np.uint64)


def records(rng: np.random.Generator, count: int, since: int) -> np.ndarray:
    """As an agent writes them, or any bytes; with honest kinds half of the time."""
    rows = np.zeros(count, RECORD)
    if rng.random() < 0.5:
        stamps = since + np.cumsum(rng.integers(0, 1000, count)) & (1 << 48) - 1
        rows["stamp_line"] = stamps.astype(np.uint64) | rng.integers(0, 1 << 16, count, np.uint64) << np.uint64(48)
    else:
        rows["stamp_line"] = rng.choice(np.concatenate((EXTREME, rng.integers(0, 1 << 64, 20, np.uint64))), count)
    rows["what"] = rng.integers(0, 1 << 64, count, np.uint64)
    if rng.random() < 0.8:
        kinds = rng.choice(np.array([0, 1, 2, 4, 5, 6], np.uint64), count)
        rows["what"] = rows["what"] & ~np.uint64(7 << 52) | kinds << np.uint64(52)
    return rows


def check(rng: np.random.Generator) -> None:
    """Several pieces into one set of rows."""
    since = int(rng.integers(0, 1 << 62))
    now = int(rng.integers(1, 1 << 50))
    span = now - int(rng.integers(0, now)), now
    line = decoding.Line(since & (1 << 48) - 1, now, float(rng.choice([1.0, 0.3125, 0.5, 1e-6, 1000.0, rng.random()])))
    func_ids = rng.integers(-1, 1 << 31, int(rng.choice([1, 2, 1000, 1 << 20])), np.int32)
    pieces = [records(rng, int(rng.integers(0, 200)), since) for _ in range(int(rng.integers(1, 4)))]
    lines = bool(rng.random() < 0.5)
    rows = decoding.Rows(sum(map(len, pieces)), func_ids, line, span, lines)
    at = 0
    for piece in pieces:
        expected = decoded(piece, func_ids, line, span, lines)
        assert rows.take(piece) == (expected is not None)
        for name, values in (expected or {}).items():
            assert rows.columns[name][at : at + len(piece)].tolist() == values, name
        at += len(piece)


def check_packed(rng: np.random.Generator) -> None:
    """What was packed is what Arrow unpacks."""
    count = int(rng.integers(0, 700)) if rng.random() < 0.95 else 40_000
    steps = rng.integers(-(1 << 63), (1 << 63) - 1, count) >> rng.integers(0, 64, count)
    columns = {
        "ts": np.cumsum(steps), "kind": rng.integers(0, len(CallKind), count), "frame": rng.choice(np.array([0, 1, -(1 << 63), (1 << 63) - 1]), count),
        "func_id": rng.integers(0, int(rng.choice([1, 2, 256, 257, 1 << 14, 1 << 31])), count), "line": -rng.permutation(count),
    }  # fmt: skip
    arrays = [pa.array(columns.get(f.name, np.zeros(count)), f.type, safe=False) for f in EVENTS.arrow]
    table, file = pa.table(arrays, schema=EVENTS.arrow), io.BytesIO()
    write_events(file, table)
    # Without threads of Arrow, which do not always end before the process does.
    assert pq.ParquetFile(io.BytesIO(file.getvalue())).read(use_threads=False).equals(table)


if __name__ == "__main__":
    library.FILE = Path(sys.argv[1])
    for seed in range(int(sys.argv[2]), int(sys.argv[3])):
        check(np.random.default_rng(seed))
        check_packed(np.random.default_rng(seed))
    print("all held")
