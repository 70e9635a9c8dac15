"""Folded stacks (`outer;inner;innermost value`), as flamegraph.pl and most viewers read them: self time in nanoseconds."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import values
from pytrace_ebpf.printable import printable
from pytrace_ebpf.view.export import small
from pytrace_ebpf.view.export.parts import column
from pytrace_ebpf.view.export.paths import NO_CONTEXT, merged, paths_in
from pytrace_ebpf.view.export.values import part_of

SUFFIX = ".folded"


def write(trace: Any, value: str, out: BinaryIO, least: float | None = None) -> str:
    """Write the self time `value` (one of values.VALUES) of every distinct stack of `trace`, summed over calls and threads: from the tree.

    `least`, and what is returned: as of small.write(). Raises UsageError where nothing is known of that value.
    """
    tree = trace.tree()
    weight, _ = values(tree[column(part_of(tree, value), "self_")])
    nodes, frames = merged(tree, weight), _frames(trace.functions())

    def lines(share: float) -> Iterator[bytes]:
        for path, total in paths_in(nodes, share):
            yield f"{';'.join(frames.get(func, '(unknown)') for func in path)} {total}\n".encode()

    return small.write(lines, out, least)


def _frames(functions: pd.DataFrame) -> dict[int, str]:
    """Function id to the text of its frame; a semicolon would end it."""
    rows = functions[["func_id", "qualname", "file", "first_line"]].itertuples(index=False)
    return {NO_CONTEXT: "(further contexts)", small.OTHER: small.OTHER_NAME} | {i: printable(_frame(*row)).replace(";", ":") for i, *row in rows}


def _frame(name: str, file: str, line: int) -> str:
    place = f"{file}:{line}" if line > 0 else file
    return f"{name} ({place})" if place else name
