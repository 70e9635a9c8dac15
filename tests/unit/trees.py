"""The tree of a trace as tests want it."""

import pyarrow as pa

from pytrace_ebpf.derive.sinks import tree
from pytrace_ebpf.derive.sums import sums_of
from pytrace_ebpf.trace.reader import Trace


def grow(trace: Trace, most: int) -> pa.Table:
    """The tree as schema.TREE, made in one go of nothing that is kept, of at most so many nodes."""
    return tree.of_sums(trace, sums_of(trace, most))
