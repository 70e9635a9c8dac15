"""What a row of the report can be: for each how its rows are found, and how a terminal shows them. A new kind is a line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd
from rich.console import RenderableType

from pytrace_ebpf.view import args, blas, cores, errors, functions, gil, lines, memory, opcodes, operators, requests, tasks, threads, waits

Found: TypeAlias = Callable[[Any, pd.DataFrame, dict[str, Any]], tuple[pd.DataFrame, dict[str, Any]]]
Shown: TypeAlias = Callable[[dict[str, Any], pd.DataFrame, int, bool, int], list[RenderableType]]


@dataclass(frozen=True)
class By:
    """One kind of row.

    found(trace, tree, facts): the rows, of a pytrace_ebpf Trace, its tree (schema.TREE) and view.summary's facts with by and sort;
      and what else is worth knowing: further facts, such as the sentence.
    shown(facts, rows, width, ascii_only, top): the lines, each at most `width` cells, with at most `top` rows of each table.
    with_bar: whether the bar for all calls stands above it.
    of_samples: whether a trace of calls alone has nothing of it.
    before(trace): derives what it needs in the pass that keeps the sums too, of which the tree is made then; None for nothing.
    of_compensated: whether with --compensate it is given native calls and what lies in them (by_function.COLUMNS) instead of the tree.
    """

    found: Found
    shown: Shown
    with_bar: bool = True
    of_samples: bool = False
    of_compensated: bool = False
    before: Callable[[Any], object] | None = None


BY = {
    "function": By(functions.found, functions.report, before=functions.before),
    "module": By(functions.found, functions.report),
    "thread": By(threads.found, threads.report),
    "core": By(cores.found, cores.report, before=cores.before),
    "request": By(requests.found, requests.report),
    "task": By(tasks.found, tasks.report),
    "wait": By(waits.found, waits.report, with_bar=False, before=waits.before),
    "operator": By(operators.found, operators.report, of_compensated=True),
    "blas": By(blas.found, blas.report, with_bar=False),
    "errors": By(errors.found, errors.report, with_bar=False),
    "line": By(lines.found, lines.report, with_bar=False),
    "opcode": By(opcodes.found, opcodes.report, with_bar=False, of_samples=True),
    "args": By(args.found, args.report, with_bar=False),
    "memory": By(memory.found, memory.report, with_bar=False),
    "gil": By(gil.found, gil.report, with_bar=False, before=waits.before),
}
