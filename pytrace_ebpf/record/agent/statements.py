"""What client libraries were asked for and trace contexts: what the agent is told to read, and its records among those of values."""

from collections.abc import Iterable, Iterator

import numpy as np

from pytrace_ebpf.record.output.statement_rows import STATEMENT
from pytrace_ebpf.record.output.tables import Columns, where
from pytrace_ebpf.record.process.namespaces import UNKNOWN_THREAD
from pytrace_ebpf.trace.client_functions import CONTEXTS, FUNCTIONS
from pytrace_ebpf.trace.schema import OBSERVED
from pytrace_ebpf.trace.streams.clients import CLIENT_CALLS, NONE, RAW, TRACE_CONTEXTS

_IS_CONTEXT = np.array([each.how in CONTEXTS for each in FUNCTIONS])


def options(clients: str | None) -> list[tuple[str, object]]:
    """Those of the agent's, for this value of `--clients`: the number of a function is its place in FUNCTIONS."""
    if clients == NONE:
        return []
    return [("raw_statements", int(clients == RAW)), *(("client", each.option) for each in FUNCTIONS)]


def by_table(batches: Iterable[Columns]) -> Iterator[tuple[str, Columns]]:
    """The columns that values.Values.take() gave, by the table that each of their rows belongs to, but for threads that are not known."""
    for batch in batches:
        columns = where(batch, batch["tid"] != UNKNOWN_THREAD)
        asked = columns["record"]["what"] == STATEMENT
        if not asked.any():
            yield OBSERVED.name, columns
            continue
        context = asked.copy()
        context[asked] = _IS_CONTEXT[columns["record"]["position"][asked]]
        for table, rows in ((OBSERVED, ~asked), (CLIENT_CALLS, asked & ~context), (TRACE_CONTEXTS, context)):
            yield table.name, where(columns, rows)
