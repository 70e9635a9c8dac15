"""The functions that answer requests: those of well-known servers and frameworks, and those that the user names."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls.nesting import levels
from pytrace_ebpf.derive.calls.own_code import in_python, of_distinct
from pytrace_ebpf.patterns import fitting, nearest

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_AT_ONCE = 1 << 16  # functions, of which there may be a million, each with a name of its own


@dataclass(frozen=True)
class EntryPoint:
    """Functions, by shell patterns of module and qualified name.

    kind: the name of their kind of request. handlers_only: a call is not a request itself, but calls the function that answers one.
    """

    kind: str
    module: str
    qualname: str
    handlers_only: bool = False


# The outermost one counts: the server's, which spans the whole answer, or the framework's where the server is written in C (uWSGI, mod_wsgi).
ENTRY_POINTS = (
    EntryPoint("WSGI", "wsgiref.handlers", "BaseHandler.run"),
    EntryPoint("HTTP", "*", "*.do_[A-Z]*"),  # of BaseHTTPRequestHandler, which a program extends
    EntryPoint("WSGI", "werkzeug.serving", "WSGIRequestHandler.run_wsgi"),
    EntryPoint("WSGI", "gunicorn.workers.*", "*Worker.handle_request"),
    EntryPoint("WSGI", "waitress.task", "WSGITask.execute"),
    EntryPoint("WSGI", "cheroot.server", "HTTPRequest.respond"),
    EntryPoint("WSGI", "gevent.pywsgi", "WSGIHandler.handle_one_response"),
    EntryPoint("WSGI", "eventlet.wsgi", "HttpProtocol.handle_one_response"),
    EntryPoint("ASGI", "uvicorn.protocols.*", "*.run_asgi"),
    EntryPoint("ASGI", "hypercorn.*.task_group", "_handle"),
    EntryPoint("Flask", "flask.app", "Flask.wsgi_app"),
    EntryPoint("Flask", "flask.app", "Flask.dispatch_request", True),
    EntryPoint("Django", "django.core.handlers.wsgi", "WSGIHandler.__call__"),
    EntryPoint("Django", "django.core.handlers.asgi", "ASGIHandler.__call__"),
    EntryPoint("Django", "django.core.handlers.base", "BaseHandler._get_response", True),
    EntryPoint("Django", "django.core.handlers.base", "BaseHandler._get_response_async", True),
    EntryPoint("FastAPI", "fastapi.routing", "request_response.<locals>.app"),
    EntryPoint("FastAPI", "fastapi.routing", "run_endpoint_function", True),
    EntryPoint("Starlette", "starlette.routing", "request_response.<locals>.app"),
    EntryPoint("Bottle", "bottle", "Bottle.wsgi"),
    EntryPoint("Falcon", "falcon.app", "App.__call__"),
    EntryPoint("aiohttp", "aiohttp.web_protocol", "RequestHandler._handle_request"),
    EntryPoint("aiohttp", "aiohttp.web_app", "Application._handle", True),
    EntryPoint("Tornado", "tornado.web", "RequestHandler._execute"),
    EntryPoint("Celery", "celery.app.trace", "build_tracer.<locals>.trace_task"),
    EntryPoint("gRPC", "grpc._server", "_unary_response_in_pool"),
    EntryPoint("gRPC", "grpc._server", "_stream_response_in_pool"),
    EntryPoint("gRPC", "grpc._server", "_call_behavior", True),
)
ASKED = "asked"  # the kind of the functions that the user names


def kinds(functions: pd.DataFrame, handlers_only: bool = False) -> "pd.Series[str]":
    """The kind of each of `functions` (schema.FUNCTIONS) that is an entry point with this `handlers_only`, by func_id."""
    points, python = [point for point in ENTRY_POINTS if point.handlers_only == handlers_only], functions[in_python(functions)]
    found = [pd.Series(point.kind, _among(python, f"{point.module}:{point.qualname}")) for point in points]
    joined = pd.concat([pd.Series([], dtype=object), *found])
    return joined[~joined.index.duplicated()]


def namers(functions: pd.DataFrame, entries: Ints, own: Ints) -> Ints:
    """The functions whose requests are named by the program's own function that they call: `entries` and those that only call such functions, but for `own`."""
    return np.setdiff1d(np.union1d(entries, kinds(functions, handlers_only=True).index.to_numpy(np.int64)), own)


def endpoints(tree: pd.DataFrame, of: Ints, own: Ints) -> Bools:
    """Which rows of a `tree` (func_id, parent_id, depth) are of the program's `own` functions that a function of namers() calls, directly or through libraries."""
    parent, function, depth = (tree[name].to_numpy(np.int64) for name in ("parent_id", "func_id", "depth"))
    is_own, leads, is_end = np.isin(function, own), np.isin(function, of), np.zeros(len(tree), bool)
    for here in levels(depth):
        led = leads[parent[here]] & (parent[here] >= 0)
        is_end[here] = led & is_own[here]
        leads[here] |= led & ~is_own[here]
    return is_end


def asked(functions: pd.DataFrame, patterns: Sequence[str]) -> "pd.Series[str]":
    """The same for the user's `patterns`: NAME, QUALNAME, MODULE.QUALNAME, MODULE:QUALNAME or, with a slash, FILE:QUALNAME."""
    found = [pd.Series(ASKED, matching(functions, pattern)) for pattern in patterns]
    joined = pd.concat([pd.Series([], dtype=object), *found])
    return joined[~joined.index.duplicated()]


def unmet(functions: pd.DataFrame, patterns: Sequence[str], option: str = "--request") -> list[str]:
    """Of patterns as of asked() that fit none of the `functions`, a sentence each, with the nearest names."""
    wanted = [pattern for pattern in patterns if not len(matching(functions, pattern))]
    if not wanted:
        return []
    python = functions[in_python(functions)]
    known = list(zip(*(python[column].astype("object") for column in ("file", "module", "qualname")), strict=True))
    return [f"{fitting(option, each, 0, len(known), nearest(each.rpartition(':')[2], known))}." for each in wanted]


def matching(functions: pd.DataFrame, pattern: str) -> pd.Index:
    """The func_ids of those of `functions` (schema.FUNCTIONS) in Python that fit a pattern as of asked()."""
    return _among(functions[in_python(functions)], pattern)


def _among(found: pd.DataFrame, pattern: str) -> pd.Index:
    where, colon, name = pattern.rpartition(":")
    if where:
        found = found[of_distinct(found["file" if "/" in where else "module"], _fits(where))]
    if name or not colon:
        found = found[_names(found, name, anywhere=not colon)]
    return pd.Index(found["func_id"])


def _names(functions: pd.DataFrame, name: str, anywhere: bool) -> Bools:
    """Mask of those whose qualified name fits; `anywhere`: what people type, which may be a name alone, or one with its module."""
    fits, mask = _fits(name), np.zeros(len(functions), bool)
    for at in range(0, len(functions), _AT_ONCE):
        some = functions.iloc[at : at + _AT_ONCE]
        qualnames = some["qualname"].astype("object")
        if not anywhere:
            mask[at : at + len(some)] = [fits(each) for each in qualnames]
        else:
            of_modules = zip(qualnames, some["module"].astype("object"), strict=True)
            mask[at : at + len(some)] = [fits(each) or fits(each.rpartition(".")[2]) or fits(f"{module}.{each}") for each, module in of_modules]
    return mask


def _fits(pattern: str) -> Callable[[str], bool]:
    """Whether a shell pattern fits the whole of a name."""
    match = re.compile(translate(pattern)).fullmatch
    return lambda name: match(name) is not None
