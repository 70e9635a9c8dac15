"""`report --only`: a view of the program's own code, or of some functions, modules, threads or tasks."""

from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls.entry_points import asked
from pytrace_ebpf.derive.calls.own_code import own
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.formatting import clean
from pytrace_ebpf.view.by import BY

HELP = "show own code alone, without libraries: own; or some of it: function=PATTERN, module=PATTERN, thread=NAME, task=PATTERN"
_OF_FUNCTIONS = ("function", "module", "thread", "wait", "gil", "line", "request", "task", "path", "client", "error", "opcode", "memory", "args")
APPLIES = {
    "own": _OF_FUNCTIONS,
    "function": _OF_FUNCTIONS,
    "module": _OF_FUNCTIONS,
    "thread": tuple(BY),
    "task": ("task", "function", "module", "thread", "request"),
}
"""By what it names the kinds of report (view.by.BY) that it narrows: of functions those whose rows are of functions, or of what happens in their calls."""

Ints = npt.NDArray[np.int64]


class Only(NamedTuple):
    """What is shown: a key of APPLIES, and the shell pattern behind it, "" of own."""

    kind: str
    pattern: str

    def func_ids(self, functions: pd.DataFrame) -> Ints:
        """Which of `functions` (schema.FUNCTIONS) that is. Raises UsageError where it is none."""
        if self.kind == "own":
            return functions["func_id"].to_numpy(np.int64)[own(functions)]
        found = asked(functions, [f"{self.pattern}:*" if self.kind == "module" else self.pattern]).index.to_numpy(np.int64)
        if not len(found):
            raise UsageError(f"--only {self.kind}={clean(self.pattern)} fits none of the {len(functions):,} functions of this trace.")
        return found

    def tids(self, threads: pd.DataFrame) -> Ints:
        """Which of `threads` (schema.THREADS) that is, by name. Raises UsageError where it is none."""
        found = threads.loc[[fnmatchcase(str(name), self.pattern) for name in threads["name"]], "tid"].to_numpy(np.int64)
        if not len(found):
            raise UsageError(f"--only thread={clean(self.pattern)} fits none of the {len(threads):,} threads of this trace; --by thread lists them.")
        return found

    def rows(self, trace: Any, table: pd.DataFrame) -> pd.DataFrame:
        """Those of a report's rows that are of it: by who calls, by either side, or by the function or that of own code that called it."""
        columns = next((some for names in _COLUMNS if (some := [name for name in names if name in table])), None)
        if columns is None and len(table):
            raise UsageError(f"--only {self.kind} has no effect on this report, whose rows are of no one function; leave it out.")
        if columns is None:
            return table
        return table[table[columns].isin(self.func_ids(trace.functions())).any(axis=1)].reset_index(drop=True)


_COLUMNS = (("waiting_func_id", "holding_func_id"), ("caller_id",), ("func_id", "own_func_id"))


def of_calls(said: str | None, by: str) -> Only | None:
    """What of its rows a report by `by` is to show; None for all, also of some threads, as it is made of these alone (of_threads). Raises UsageError."""
    chosen = only(said, by)
    return None if chosen and chosen.kind == "thread" else chosen


def of_threads(trace: Any, said: str | None, by: str) -> Any:
    """The piece of a pytrace_ebpf Trace that `--only thread=NAME` asks for: what a report by `by` is made of; else the trace."""
    chosen = only(said, by)
    if chosen is None or chosen.kind != "thread":
        return trace
    piece = trace.window(tid=tuple(chosen.tids(trace.threads()).tolist()))
    piece.progress = trace.progress
    return piece


def only(said: str | None, by: str) -> Only | None:
    """What `--only` was given, for a report by `by`; None for nothing. Raises UsageError."""
    if not said:
        return None
    kind, equals, pattern = said.partition("=")
    if kind not in APPLIES or bool(equals) == (kind == "own") or bool(pattern) == (kind == "own"):
        raise UsageError(f"--only {clean(said)} is not known: give own, function=PATTERN, module=PATTERN, thread=NAME or task=PATTERN.")
    if by not in APPLIES[kind]:
        raise UsageError(f"--only {kind} has no effect with --by {by}, only with --by {' or '.join(APPLIES[kind])}; leave it out.")
    return Only(kind, pattern)
