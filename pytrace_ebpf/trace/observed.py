"""The tables of what observed functions were given and returned as data, a part of trace/schema.py."""

from pytrace_ebpf.trace.table import PID, TID, Column, Table

WHATS = ("argument", "return", "yield", "raised")
COMPLETE, CUT, REDACTED, UNREAD = VALUE_STATUSES = ("complete", "cut", "redacted", "unread")

_DICTIONARY = "dictionary of string"
_VALUE = (
    Column("what", _DICTIONARY, "", "argument; or what left the call: return, yield, raised (the exception)"),
    Column("position", "int16", "", "of an argument, in the order of co_varnames: positional ones, keyword-only ones, *args, **kwargs; else -1"),
    Column("name", _DICTIONARY, "", "of an argument; else null", True),
    Column(
        "type",
        _DICTIONARY,
        "",
        "qualified name of the object's type, without its module; null where that was not read",
        True,
    ),
    Column(
        "value",
        "string",
        "",
        "int (in decimal), float, bool, None, str and bytes, and what is derived from one of these, as text; an exception's first argument "
        "where that is a str. Of str and bytes so much as has room in 160 bytes of UTF-8; in a str a lone surrogate is \\udcff, "
        "in bytes what is not printable ASCII \\xff. Null for all else",
        True,
    ),
    Column(
        "shape",
        "list of int64",
        "",
        "of an array of NumPy or a tensor of PyTorch its sizes; of str, bytes and containers (list, tuple, dict, set, frozenset, bytearray) "
        "their length; of an int that is cut the bits of its magnitude; else null",
        True,
    ),
    Column("dtype", _DICTIONARY, "", "of an array or a tensor; null where it has none of the usual ones", True),
    Column(
        "status",
        _DICTIONARY,
        "",
        "complete; cut: value has its beginning, of an int nothing, or shape the first sizes; redacted: by its name, only its type is recorded; "
        "unread: it could not be seen",
    ),
)

OBSERVED = Table(
    "observed",
    "One row per object that an observed function (`--args`) was given, returned, yielded or was left by.",
    (),
    (
        Column("ts", "int64", "ns", "when: start_ns of the call for an argument, end_ns for what left it"),
        PID,
        TID,
        *_VALUE,
    ),
    counted="value",
    weight=7,
)

VALUES = Table(
    "values",
    "The rows of observed, each with its call; derived and rebuildable. In parts, by when the call ended; in each call in the order of what and position.",
    (),
    (Column("call_id", "int64", "", "joins calls"), *_VALUE),
    derived=True,
)
