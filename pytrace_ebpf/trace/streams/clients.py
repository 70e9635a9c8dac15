"""The stream of what client libraries are asked for, statements, URLs and commands: `--clients`. It is recorded with the agent unasked."""

from pytrace_ebpf.trace.client_functions import CONTEXTS, FUNCTIONS
from pytrace_ebpf.trace.stream import Option, Stream
from pytrace_ebpf.trace.table import PID, TID, Column, Table

NORMALIZED, RAW, NONE = CHOICES = ("normalized", "raw", "none")
_DICTIONARY = "dictionary of string"
_LIBRARIES = tuple(dict.fromkeys(each.library for each in FUNCTIONS if each.how not in CONTEXTS))
_STATEMENT = (
    Column("library", _DICTIONARY, "", ", ".join(_LIBRARIES)),
    Column(
        "statement",
        _DICTIONARY,
        "",
        "SQL, METHOD and URL, command, or name of what was asked for, of at most 1,000 bytes, and without literals, query strings, users and arguments, "
        "for which ? stands, unless --clients raw was given; (TYPE) where an object stands for it; of some functions their own name; null where it could not be read",
        True,
    ),
    Column("status", _DICTIONARY, "", "complete; cut: there was more of it than is read or kept; unread"),
    Column(
        "pool",
        "int64",
        "",
        "which pool of its process something was taken from or given back to, by its address; null for none, and where that was not read",
        True,
    ),
)

CLIENT_CALLS = Table(
    "client_calls",
    "One row per call of a function of a client library that is known to the agent (`--clients`), also of one within another's.",
    (),
    (Column("ts", "int64", "ns", "start_ns of the call"), PID, TID, *_STATEMENT),
    weight=7,
)
STATEMENTS = Table(
    "statements",
    "The rows of client_calls, each with its call; derived and rebuildable. In parts, by when it turned out which call that is.",
    (),
    (
        Column("ts", "int64", "ns", "start_ns of the call"),
        PID,
        TID,
        Column("call_id", "int64", "", "joins calls; of a coroutine its coroutine_id in tasks; -1 not known"),
        Column("func_id", "int32", "", "the library's function, in functions; -1 not known"),
        Column(
            "own_func_id",
            "int32",
            "",
            "the program's own function that called it, through functions of libraries or not; -1 none, as of what an event loop or a pool calls",
        ),
        Column("own_line", "int32", "", "line of that function that called the library; -1 not known"),
        *_STATEMENT,
    ),
    derived=True,
)
TRACE_CONTEXTS = Table(
    "trace_contexts",
    "One row per trace context that the agent saw: of a W3C header (`traceparent`) that a function which begins requests was given, or of a span that "
    "the SDK of OpenTelemetry made.",
    (),
    (
        Column("ts", "int64", "ns", "start_ns of the call that was given it"),
        PID,
        TID,
        Column("source", _DICTIONARY, "", "w3c, opentelemetry"),
        Column("trace_id", "string", "", "32 hexadecimal digits"),
        Column("span_id", "string", "", "16 hexadecimal digits: of w3c the caller's span, of opentelemetry the span itself"),
    ),
    weight=3,
)
STREAM = Stream(
    "clients",
    Option(
        "what to record of what client libraries are asked for (SQL, URLs, commands; docs/clients.md): normalized, without literals and query strings, which the agent does "
        "unasked; raw, with all of it, which may be a secret; none",
        choices=CHOICES,
    ),
    users=True,
    tables=(CLIENT_CALLS, TRACE_CONTEXTS),
    needs_agent="only the agent reads what libraries are asked for",
    prefers_agent=True,
    report="pytrace_ebpf.view.client",
)
