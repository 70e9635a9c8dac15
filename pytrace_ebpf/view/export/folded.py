"""Folded stacks (`outer;inner;innermost value`), as flamegraph.pl and most viewers read them: self time in nanoseconds."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pandas as pd

from pytrace_ebpf.printable import printable
from pytrace_ebpf.trace.frames import values_and_mask
from pytrace_ebpf.view.export import small
from pytrace_ebpf.view.export.call_paths import NO_CONTEXT, merged, paths_in
from pytrace_ebpf.view.export.parts import column, part_of

SUFFIX = ".folded"
_NAMED = ["func_id", "qualname", "file", "first_line", "module"]


def write(trace: Any, value: str, out: BinaryIO, least: float | None = None) -> str:
    """Write the self time `value` (one of values.VALUES) of every distinct stack of `trace`, summed over calls and threads: from the tree.

    `least`, and what is returned: as of small.write(). Raises UsageError where nothing is known of that value.
    """
    tree = trace.tree()
    weight, _ = values_and_mask(tree[column(part_of(tree, value), "self_")])
    nodes, frames = merged(tree, weight), _frames(trace.functions())

    def lines(share: float) -> Iterator[bytes]:
        for path, total in paths_in(nodes, share):
            yield f"{';'.join(frames.get(func, '(unknown)') for func in path)} {total}\n".encode()

    return small.write(lines, out, least)


def _frames(functions: pd.DataFrame) -> dict[int, str]:
    """Function id to the text of its frame; a semicolon would end it."""
    files = _short_files(functions)
    rows = ((i, name, files[file, module], line) for i, name, file, line, module in functions[_NAMED].itertuples(index=False))
    return {NO_CONTEXT: "(further contexts)", small.OTHER: small.OTHER_NAME} | {i: printable(_frame(*row)).replace(";", ":") for i, *row in rows}


def _short_files(functions: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Of each file and module the end of the path that has the module's name, as each stack has it once more for each of its frames; the whole path
    where it does not end so, as of scripts, and where two files would be called the same."""
    short, files = {}, dict[str, str]()
    for file, module in functions[["file", "module"]].drop_duplicates().itertuples(index=False):
        path = module.replace(".", "/")
        ends = [end for end in (f"{path}.py", f"{path}/__init__.py") if path and file.endswith(f"/{end}")]
        short[file, module] = ends[0] if ends else file
        if files.setdefault(short[file, module], file) != file:
            files[short[file, module]] = ""
    return {(file, module): name if files[name] == file else file for (file, module), name in short.items()}


def _frame(name: str, file: str, line: int) -> str:
    place = f"{file}:{line}" if line > 0 else file
    return f"{name} ({place})" if place else name
