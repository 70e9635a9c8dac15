"""The functions that answer requests: those of well-known servers and frameworks, and those that the user names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.patterns import fitting, nearest

Bools = npt.NDArray[np.bool_]


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

_LIBRARY = re.compile(r"<|.*/(site-packages|dist-packages|python3(\.\d+t?)?(\.zip)?)/")


def kinds(functions: pd.DataFrame, handlers_only: bool = False) -> "pd.Series[str]":
    """The kind of each of `functions` (schema.FUNCTIONS) that is an entry point with this `handlers_only`, by func_id."""
    points = [point for point in ENTRY_POINTS if point.handlers_only == handlers_only]
    found = [pd.Series(point.kind, _matching(functions, f"{point.module}:{point.qualname}")) for point in points]
    joined = pd.concat([pd.Series([], dtype=object), *found])
    return joined[~joined.index.duplicated()]


def asked(functions: pd.DataFrame, patterns: Sequence[str]) -> "pd.Series[str]":
    """The same for the user's `patterns`: NAME, QUALNAME, MODULE.QUALNAME, MODULE:QUALNAME or, with a slash, FILE:QUALNAME."""
    found = [pd.Series(ASKED, _matching(functions, pattern)) for pattern in patterns]
    joined = pd.concat([pd.Series([], dtype=object), *found])
    return joined[~joined.index.duplicated()]


def own(functions: pd.DataFrame) -> Bools:
    """Mask of the program's own functions: written in Python, and not in a folder of libraries."""
    python = (functions["function_layer"] == "python").to_numpy(dtype=bool)
    return python & ~functions["file"].astype("object").map(lambda file: bool(_LIBRARY.match(file))).to_numpy(dtype=bool)


def unmet(functions: pd.DataFrame, patterns: Sequence[str]) -> list[str]:
    """Of patterns as of asked() that fit none of the `functions`, a sentence each, with the nearest names."""
    python = functions[functions["function_layer"].astype("object") == "python"]
    known = list(zip(*(python[column].astype("object") for column in ("file", "module", "qualname")), strict=True))
    wanted = [pattern for pattern in patterns if not len(_matching(functions, pattern))]
    return [f"{fitting('--request', each, 0, len(known), nearest(each.rpartition(':')[2], known))}." for each in wanted]


def _matching(functions: pd.DataFrame, pattern: str) -> pd.Index:
    where, colon, name = pattern.rpartition(":")
    fits = functions["function_layer"].astype("object") == "python"
    qualname, module = functions["qualname"].astype("object"), functions["module"].astype("object")
    if not colon:  # what people type
        plain = qualname.str.rpartition(".")[2]
        return pd.Index(
            functions["func_id"][
                fits & pd.concat([each.str.fullmatch(translate(name)) for each in (qualname, plain, module + "." + qualname)], axis=1).any(axis=1)
            ]
        )
    for values, wanted in ((qualname, name), (functions["file"].astype("object") if "/" in where else module, where)):
        if wanted:
            fits &= values.str.fullmatch(translate(wanted))
    return pd.Index(functions["func_id"][fits])
