"""With Polars, over the files: how busy each function was in every tenth of a second. calls_over_time.py TRACE"""

import sys
from pathlib import Path

import polars as pl

import pytrace_ebpf

path = Path(sys.argv[1])
trace = pytrace_ebpf.open(path)
next(trace.iter_calls(columns=["call_id"]))  # builds the folder of Parquet files where it is not there yet

tenth = ((pl.col("start_ns") - trace.start_ns) // 100_000_000 / 10).alias("after_s")
busy = (
    pl.scan_parquet(path / "calls")
    .filter(pl.col("status") == "complete")
    .group_by(tenth, "func_id")
    .agg(pl.len().alias("calls"), (pl.col("self_wall_ns").sum() / 1e6).alias("self_ms"))
    .join(pl.scan_parquet(path / "functions"), on="func_id")
    .sort("after_s", "self_ms", descending=[False, True])
    .group_by("after_s", maintain_order=True)
    .head(3)
    .select("after_s", "qualname", "calls", "self_ms")
    .collect()
)
with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, fmt_str_lengths=60):
    print(busy)
