"""The small web service again, as applications of WSGI and ASGI, for servers with several workers."""

import orders


def wsgi(environ: dict, start_response) -> list:
    """Answers one order."""
    answer = orders.answer(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))])
    return [answer]


async def asgi(scope: dict, receive, send) -> None:
    """Answers one order."""
    order, more = b"", scope["type"] == "http"
    while more:
        part = await receive()
        order, more = order + part["body"], part.get("more_body", False)
    answer = orders.answer(order)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(answer)).encode())]})
    await send({"type": "http.response.body", "body": answer})
