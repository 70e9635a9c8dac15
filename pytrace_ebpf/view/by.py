"""What a row of the report can be: for each how its rows are found, and how a terminal shows them. A new kind is a line here.

The module of a kind is imported when it is asked for: all of them take as long as a small report.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd
from rich.console import RenderableType

from pytrace_ebpf.trace.declared import STREAMS

Found: TypeAlias = Callable[[Any, pd.DataFrame, dict[str, Any]], tuple[pd.DataFrame, dict[str, Any]]]
Shown: TypeAlias = Callable[[dict[str, Any], pd.DataFrame, int, bool, int], list[RenderableType]]
Before: TypeAlias = Callable[[Any], object]


@dataclass(frozen=True)
class By:
    """One kind of row.

    module: the file of view/ with its `found` and `report`; of a stream's the whole name.
    with_bar: whether the bar for all calls stands above it.
    of_samples: whether a trace of calls alone has nothing of it.
    of_compensated: whether with --compensate it is given native calls and what lies in them (by_function.COLUMNS) instead of the tree.
    prepared_by: the file of view/ with its `before`; None for nothing.
    """

    module: str
    with_bar: bool = True
    of_samples: bool = False
    of_compensated: bool = False
    prepared_by: str | None = None

    @property
    def found(self) -> Found:
        """found(trace, tree, facts): the rows, of a pytrace_ebpf Trace, its tree (schema.TREE) and view.summary's facts with by and sort;
        and what else is worth knowing: further facts, such as the sentence."""
        found: Found = _of(self.module).found
        return found

    @property
    def shown(self) -> Shown:
        """shown(facts, rows, width, ascii_only, top): the lines, each at most `width` cells, with at most `top` rows of each table."""
        shown: Shown = _of(self.module).report
        return shown

    @property
    def before(self) -> Before | None:
        """before(trace): derives what it needs in the pass that keeps the sums too, of which the tree is made then; None for nothing."""
        before: Before | None = _of(self.prepared_by).before if self.prepared_by else None
        return before


def _of(module: str) -> Any:
    return importlib.import_module(module if "." in module else f"pytrace_ebpf.view.{module}")


BY = {
    "function": By("functions", prepared_by="functions"),
    "module": By("functions"),
    "thread": By("threads"),
    "core": By("cores", prepared_by="cores"),
    "request": By("requests"),
    "step": By("steps", prepared_by="steps"),
    "rank": By("ranks", with_bar=False, prepared_by="ranks"),
    "task": By("tasks", prepared_by="tasks"),
    "path": By("path", with_bar=False, prepared_by="path"),
    "wait": By("waits", with_bar=False, prepared_by="waits"),
    "operator": By("operators", of_compensated=True),
    "blas": By("blas", with_bar=False),
    "error": By("errors", with_bar=False),
    "line": By("lines", with_bar=False),
    "opcode": By("opcodes", with_bar=False, of_samples=True),
    **{stream.by: By(stream.report, with_bar=False) for stream in STREAMS if stream.report},
    "gil": By("gil", with_bar=False, prepared_by="gil"),
}
