"""An agent's records of what client libraries were asked for as the tables `client_calls` and `trace_contexts`, by column."""

from __future__ import annotations

import numpy as np

from pytrace_ebpf.lazy_imports import pa, pc
from pytrace_ebpf.record.output.observed_rows import COMPLETE, CUT, plain_texts, words
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.trace.client_functions import FUNCTIONS, NAME_ALONE, OBJECT
from pytrace_ebpf.trace.observed import VALUE_STATUSES, WHATS
from pytrace_ebpf.trace.schema import Table

STATEMENT = len(WHATS) + 1  # value.what of probes/agent/agent.h
_LIBRARIES = tuple(dict.fromkeys(each.library for each in FUNCTIONS))
_LIBRARY = np.array([_LIBRARIES.index(each.library) for each in FUNCTIONS])
_OWN_NAMES = tuple(each.qualname if each.how in (NAME_ALONE, OBJECT) else "" for each in FUNCTIONS)
_OF_POOLS = np.array([each.how == OBJECT for each in FUNCTIONS])
_CONTEXT = "^[0-9a-f]{32}-[0-9a-f]{16}$"
_TRACE_DIGITS = 32


def client_calls_table(table: Table, columns: Columns) -> pa.Table:
    """Columns ts, pid, tid, name (texts or None) and record (struct value) as `client_calls`."""
    records = columns["record"]
    own = pa.array(_OWN_NAMES).take(pa.array(records["position"]))
    statement = pc.if_else(pc.equal(own, ""), _texts(columns), own)
    statement = pc.if_else(pc.equal(statement, ""), None, statement)
    unread = pc.and_(pc.is_null(statement), pa.array(records["status"] != CUT)).to_numpy(zero_copy_only=False)
    status = np.where(unread, VALUE_STATUSES.index("unread"), records["status"])
    pool = pa.array(records["length"], mask=~_OF_POOLS[records["position"]] | (records["length"] == 0))
    return _table(table, columns, library=_library(records), statement=statement.dictionary_encode(), status=words(VALUE_STATUSES, status), pool=pool)


def trace_contexts_table(table: Table, columns: Columns) -> pa.Table:
    """The same as `trace_contexts`, but for what is none."""
    text = _texts(columns)
    trace, span = pc.utf8_slice_codeunits(text, 0, _TRACE_DIGITS), pc.utf8_slice_codeunits(text, _TRACE_DIGITS + 1)
    found = _table(table, columns, source=_library(columns["record"]), trace_id=trace, span_id=span)
    return found.filter(pc.match_substring_regex(text, _CONTEXT))


def _table(table: Table, columns: Columns, **more: pa.Array) -> pa.Table:
    return pa.table({**{name: pa.array(columns[name]) for name in ("ts", "pid", "tid")}, **more}, schema=table.arrow)


def _library(records: np.ndarray) -> pa.Array:
    return words(_LIBRARIES, _LIBRARY[records["position"]])


def _texts(columns: Columns) -> pa.Array:
    """The text of each: that of the name where it has one, else that in the record."""
    records = columns["record"].copy()
    records["status"] = COMPLETE
    return pc.coalesce(pa.array(columns["name"], pa.string()), plain_texts(records))
