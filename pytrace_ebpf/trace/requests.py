"""The table of requests as data, a part of trace/schema.py."""

from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.table import PID, TID, Column, Table

_DICTIONARY = "dictionary of string"
_OF_WALL = "of wall_ns, as in calls; of a coroutine that of its resumes alone"

REQUESTS = Table(
    "requests",
    "One row per request, in the order of request_id: the outermost calls of functions that answer requests (of usual servers and frameworks, and what `--request` names; those within each other's). Derived from the calls and rebuildable. Where none of the four parts is null they and awaited_ns sum to wall_ns exactly.",
    (),
    (
        Column("request_id", "int64", "", "the call_id of that call; of a coroutine its coroutine_id in tasks"),
        PID,
        TID,
        Column("kind", _DICTIONARY, "", "WSGI, ASGI, Flask, Django, Celery, gRPC and so on by its function; asked: `--request` named that"),
        Column("func_id", "int32", "", "its function, in functions"),
        Column("endpoint_func_id", "int32", "", "the function of the program's own that answered it: of those called through libraries alone the one that took longest, below the framework's dispatcher where there is one; func_id where there is none"),
        Column("start_ns", "int64", "ns", "entry"),
        Column("end_ns", "int64", "ns", "return; see calls and tasks"),
        Column("wall_ns", "int64", "ns", "end_ns - start_ns"),
        *(Column(name, "int64", "ns", _OF_WALL, True) for name in SPLIT),
        Column("awaited_ns", "int64", "ns", "of a coroutine: time suspended, between its resumes; else 0"),
        Column("status", _DICTIONARY, "", "as in calls or tasks"),
        Column("trace_id", "string", "", "of distributed tracing, 32 hexadecimal digits: of the first span that OpenTelemetry's SDK made within it, else of the W3C header `traceparent` that it came with (docs/trace-ids.md); null for none", True),
        Column("span_id", "string", "", "16 hexadecimal digits: that span; with a header the caller's", True),
    ),
    derived=True,
)  # fmt: skip
