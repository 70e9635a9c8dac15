"""Folded stacks (`outer;inner;innermost value`), as flamegraph.pl and most viewers read them: self time in nanoseconds."""

from typing import Any, BinaryIO

import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import values
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.states import NAMES
from pytrace_ebpf.view.export.paths import NO_CONTEXT, paths

SUFFIX = ".folded"
VALUES = ("wall", *NAMES)


def write(trace: Any, value: str, out: BinaryIO) -> None:
    """Write the self time `value` (one of VALUES) of every distinct stack of `trace`, summed over calls and threads: from the tree.

    Raises UsageError where nothing is known of that value.
    """
    tree = trace.tree()
    made = (tree["calls"] > 0).to_numpy()
    weight, known = values(tree["self_ns" if value == "wall" else f"self_{value}_ns"])
    if made.any() and not known[made].any():
        raise UsageError(f"This trace has no scheduling events, so it has no {value}; export --value wall instead.")
    if not known[made & values(tree["self_on_cpu_ns"])[1]].all():
        raise UsageError(f"This trace does not tell {value} of all its calls; export --value on_cpu or wall instead.")
    frames = _frames(trace.functions())
    for path, total in paths(tree, weight):
        out.write(f"{';'.join(frames.get(func, '(unknown)') for func in path)} {total}\n".encode())


def _frames(functions: pd.DataFrame) -> dict[int, str]:
    """Function id to the text of its frame; a semicolon would end it."""
    rows = functions[["func_id", "qualname", "file", "first_line"]].itertuples(index=False)
    return {NO_CONTEXT: "(further contexts)"} | {i: printable(_frame(*row)).replace(";", ":") for i, *row in rows}


def _frame(name: str, file: str, line: int) -> str:
    place = f"{file}:{line}" if line > 0 else file
    return f"{name} ({place})" if place else name
