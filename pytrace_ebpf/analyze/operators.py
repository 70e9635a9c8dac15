"""Calls of native code with the tensors they were given and returned, what these cost, and the error that left them."""

from pathlib import Path

from pytrace_ebpf.trace.reader import Trace


def derive(trace: Trace, into: Path) -> None:
    """Write the native calls of `trace` as Parquet parts into the folder `into`."""
