"""Requests of a WSGI server whose application makes spans with OpenTelemetry's SDK; every second one comes with the header of a caller.

Prints one JSON line: `spans`, [trace_id, span_id] of the first span of each request, in their order.
"""

import http.client
import json
import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider

REQUESTS = 6
trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("shop")
spans = []


def application(environ, start_response):
    carrier = {"traceparent": environ["HTTP_TRACEPARENT"]} if "HTTP_TRACEPARENT" in environ else {}
    with tracer.start_as_current_span("order", context=extract(carrier)) as span:
        context = span.get_span_context()
        spans.append([f"{context.trace_id:032x}", f"{context.span_id:016x}"])
        with tracer.start_as_current_span("database"):
            start_response("200 OK", [("Content-Length", "2")])
            return [b"ok"]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


server = make_server("127.0.0.1", 0, application, handler_class=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
for number in range(REQUESTS):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    header = {"traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01"} if number % 2 else {}
    connection.request("GET", "/", headers=header)
    connection.getresponse().read()
    connection.close()
server.shutdown()
assert len({first for first, _ in spans}) == REQUESTS and all(int(spans[number][0], 16) == number + 1 for number in (1, 3, 5))
print(json.dumps({"spans": spans}), flush=True)
