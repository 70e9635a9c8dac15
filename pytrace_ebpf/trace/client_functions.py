"""The functions of client libraries, and in which of their arguments stands what a server, a process or a pool is asked for. A library is a line or a few.

Only functions of Python can be seen: sqlite3 and the cursors of psycopg2 are written in C, and what they are asked for is seen where SQLAlchemy, Django or
psycopg2.extras call them.
"""

from dataclasses import dataclass

# How a statement is read: probes/agent/statements.h and options.h.
SQL, POSTGRES, MYSQL, URL, COMMAND, WORD, HEADERS, SPAN, NAME_ALONE, OBJECT = "s", "p", "m", "u", "c", "n", "h", "x", "f", "o"
CONTEXTS = (HEADERS, SPAN)
_POOLS = {
    "asyncpg.pool": "asyncpg pool",
    "psycopg_pool": "psycopg pool",
    "redis.asyncio.connection": "redis pool",
    "redis.connection": "redis pool",
    "sqlalchemy.pool": "SQLAlchemy pool",
    "sqlalchemy.util.queue": "SQLAlchemy pool",
    "urllib3.connectionpool": "urllib3 pool",
}
"""By module, with what is in it, of which library's pool it is that waits there."""


def pool_of(module: str) -> str | None:
    """The pool that a function of this module waits for; None for none."""
    return next((name for of, name in _POOLS.items() if module == of or module.startswith(f"{of}.")), None)


@dataclass(frozen=True)
class ClientFunction:
    """One function.

    how        how its statement is read; NAME_ALONE: it is the function's own name; OBJECT: the same, and of which pool it is called
    arguments  in which it stands, by name: of URL the method's and the URL's
    gives_back to a pool what another of its functions took
    """

    library: str
    how: str
    arguments: tuple[str, ...]
    module: str
    qualname: str
    gives_back: bool = False

    @property
    def option(self) -> str:
        """As the agent's options have it."""
        return f"{self.how} {','.join(self.arguments) or '-'} {self.module}.{self.qualname}"


def _pool(library: str, module: str, takes: str, gives: str) -> tuple[ClientFunction, ...]:
    """Lines of a class of pools: CLASS.NAME of what takes and of what gives back."""
    return (ClientFunction(library, OBJECT, ("self",), module, takes), ClientFunction(library, OBJECT, ("self",), module, gives, gives_back=True))


def _of(library: str, how: str, arguments: str, *functions: str) -> tuple[ClientFunction, ...]:
    """Lines of some functions, MODULE:CLASS.NAME,NAME each."""
    found = (each.partition(":") for each in functions)
    pairs = [(module, names.rpartition(".")) for module, _, names in found]
    return tuple(
        ClientFunction(library, how, tuple(arguments.split()), module, f"{of}.{name}" if of else name)
        for module, (of, _, names) in pairs
        for name in names.split(",")
    )


FUNCTIONS = (
    *_of("psycopg2", POSTGRES, "sql", "psycopg2.extras:execute_values,execute_batch"),
    *_of(
        "psycopg2",
        POSTGRES,
        "query",
        "psycopg2.extras:DictCursor.execute",
        "psycopg2.extras:RealDictCursor.execute",
        "psycopg2.extras:NamedTupleCursor.execute,executemany",
        "psycopg2.extras:LoggingCursor.execute",
    ),
    *_of(
        "psycopg",
        POSTGRES,
        "query",
        "psycopg.cursor:Cursor.execute,executemany,stream",
        "psycopg.cursor_async:AsyncCursor.execute,executemany,stream",
        "psycopg._server_cursor:ServerCursor.execute",
        "psycopg._server_cursor_async:AsyncServerCursor.execute",
    ),
    *_pool("psycopg pool", "psycopg_pool.pool", "ConnectionPool.getconn", "ConnectionPool.putconn"),
    *_pool("psycopg pool", "psycopg_pool.pool_async", "AsyncConnectionPool.getconn", "AsyncConnectionPool.putconn"),
    *_of("asyncpg", POSTGRES, "query", "asyncpg.connection:Connection.execute,fetch,fetchrow,fetchval,fetchmany"),
    *_of("asyncpg", POSTGRES, "command", "asyncpg.connection:Connection.executemany"),
    *_pool("asyncpg pool", "asyncpg.pool", "Pool._acquire", "Pool.release"),
    *_of("pymysql", MYSQL, "query", "pymysql.cursors:Cursor.execute,executemany"),
    *_of("mysqlclient", MYSQL, "query", "MySQLdb.cursors:BaseCursor.execute,executemany"),
    *_of(
        "SQLAlchemy",
        SQL,
        "statement",
        "sqlalchemy.engine.default:DefaultDialect.do_execute,do_executemany,do_execute_no_params",
        "sqlalchemy.dialects.postgresql.psycopg2:PGDialect_psycopg2.do_executemany",
    ),
    *_pool("SQLAlchemy pool", "sqlalchemy.pool.impl", "QueuePool._do_get", "QueuePool._do_return_conn"),
    *_of("Django", SQL, "sql", "django.db.backends.utils:CursorWrapper.execute,executemany"),
    *_of("redis", WORD, "args", "redis.client:Redis.execute_command", "redis.asyncio.client:Redis.execute_command"),
    *_of("redis", NAME_ALONE, "", "redis.client:Pipeline.execute", "redis.asyncio.client:Pipeline.execute"),
    *_pool("redis pool", "redis.connection", "BlockingConnectionPool.get_connection", "BlockingConnectionPool.release"),
    *_pool("redis pool", "redis.asyncio.connection", "BlockingConnectionPool.get_connection", "BlockingConnectionPool.release"),
    *_of(
        "pymongo",
        WORD,
        "spec",
        "pymongo.pool:Connection.command",
        "pymongo.synchronous.pool:Connection.command",
        "pymongo.asynchronous.pool:AsyncConnection.command",
    ),
    *_of(
        "elasticsearch",
        URL,
        "method target",
        "elastic_transport._transport:Transport.perform_request",
        "elastic_transport._async_transport:AsyncTransport.perform_request",
    ),
    *_of("requests", URL, "method url", "requests.sessions:Session.request"),
    *_of("urllib3", URL, "method url", "urllib3.poolmanager:PoolManager.urlopen", "urllib3.connectionpool:HTTPConnectionPool.urlopen"),
    *_of("httpx", URL, "method url", "httpx._client:Client.request,stream", "httpx._client:AsyncClient.request,stream"),
    *_of("aiohttp", URL, "method str_or_url", "aiohttp.client:ClientSession._request"),
    *_of("urllib", URL, "fullurl", "urllib.request:OpenerDirector.open"),
    *_of("http.client", URL, "method url", "http.client:HTTPConnection.putrequest"),
    *_of(
        "grpc",
        NAME_ALONE,
        "",
        "grpc._channel:_UnaryUnaryMultiCallable._blocking",
        "grpc._channel:_UnaryStreamMultiCallable.__call__",
        "grpc._channel:_StreamUnaryMultiCallable._blocking",
        "grpc._channel:_StreamStreamMultiCallable.__call__",
    ),
    *_of("botocore", WORD, "operation_name", "botocore.client:BaseClient._make_api_call"),
    *_of("dns", WORD, "host", "socket:getaddrinfo"),
    *_of("celery", WORD, "name", "celery.app.base:Celery.send_task"),
    *_of("celery", NAME_ALONE, "", "celery.result:AsyncResult.get"),
    *_of("kafka-python", WORD, "topic", "kafka.producer.kafka:KafkaProducer.send"),
    *_of("kafka-python", NAME_ALONE, "", "kafka.producer.kafka:KafkaProducer.flush", "kafka.consumer.group:KafkaConsumer.poll"),
    *_of("subprocess", COMMAND, "args", "subprocess:Popen.__init__"),
    *_of("subprocess", NAME_ALONE, "", "subprocess:Popen.wait,communicate"),
    *_of(
        "concurrent.futures",
        NAME_ALONE,
        "",
        "concurrent.futures._base:Future.result",
        "concurrent.futures.thread:ThreadPoolExecutor.submit",
        "concurrent.futures.process:ProcessPoolExecutor.submit",
    ),
    *_of("w3c", HEADERS, "environ", "flask.app:Flask.wsgi_app,__call__", "django.core.handlers.wsgi:WSGIHandler.__call__", "bottle:Bottle.wsgi"),
    *_of("w3c", HEADERS, "env", "falcon.app:App.__call__"),
    *_of(
        "w3c",
        HEADERS,
        "scope",
        "django.core.handlers.asgi:ASGIHandler.__call__",
        "starlette.applications:Starlette.__call__",
        "fastapi.applications:FastAPI.__call__",
    ),
    *_of("w3c", HEADERS, "request", "celery.app.trace:build_tracer.<locals>.trace_task"),
    *_of("opentelemetry", SPAN, "context", "opentelemetry.sdk.trace:Span.__init__"),
)
"""By the number that the agent has for each."""
