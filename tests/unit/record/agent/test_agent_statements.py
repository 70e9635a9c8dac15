"""What the preloaded agent writes of what client libraries are asked for: normalized before it leaves the program, so that no literal is anywhere in it."""

import random
from pathlib import Path

import numpy as np

from pytrace_ebpf.record.agent import statements
from pytrace_ebpf.record.output.statement_rows import client_calls_table, trace_contexts_table
from pytrace_ebpf.trace.client_functions import FUNCTIONS
from pytrace_ebpf.trace.streams.clients import CLIENT_CALLS, RAW, TRACE_CONTEXTS
from tests.agent_arena import Arena, Session
from tests.unit.agent_pythons import MINOR, built, every_python, run

pytestmark = built
FIRST = next(iter(MINOR))

# In the place of libraries: functions of their names, whose arguments have the names of theirs.
LIBRARIES = {
    "psycopg/cursor.py": "class Cursor:\n def execute(self, query, params=None): pass\n",
    "pymysql/cursors.py": "class Cursor:\n def execute(self, query, args=None): pass\n",
    "sqlalchemy/engine/default.py": "class DefaultDialect:\n def do_execute(self, cursor, statement, parameters, context=None):\n  def inner(): return statement\n",
    "requests/sessions.py": "class Session:\n def request(self, method, url, params=None, **more): pass\n",
    "redis/client.py": "class Redis:\n def execute_command(self, *args, **options): pass\n",
    "pymongo/pool.py": "class Connection:\n def command(self, dbname, spec): pass\n",
    "grpc/_channel.py": "class _UnaryUnaryMultiCallable:\n def _blocking(self, request): pass\n",
    "asyncpg/connection.py": "class Connection:\n async def fetch(self, query, *args): pass\n",
    "flask/app.py": "class Flask:\n def wsgi_app(self, environ, start_response): pass\n",
    "starlette/applications.py": "class Starlette:\n async def __call__(self, scope, receive, send): pass\n",
    "opentelemetry/sdk/trace/__init__.py": "class Span:\n def __init__(self, name, context, parent=None): pass\n",
}
HEAD = """
import sys, asyncio
sys.path.insert(0, sys.argv[1])
from psycopg.cursor import Cursor as Postgres
from pymysql.cursors import Cursor as Mysql
from sqlalchemy.engine.default import DefaultDialect as Any
from requests.sessions import Session
from redis.client import Redis
from pymongo.pool import Connection as Mongo
from grpc._channel import _UnaryUnaryMultiCallable as Grpc
from asyncpg.connection import Connection as Async
from flask.app import Flask
from starlette.applications import Starlette
from opentelemetry.sdk.trace import Span
import subprocess
def popen(args, **more):
    try: subprocess.Popen(args, **more)
    except FileNotFoundError: pass
class Path_:
    def __init__(self, s): self.s = s
    def __fspath__(self): return self.s
class Composed: pass
"""


def recorded(directory: Path, interpreter: str, program: str, clients: str | None = None) -> Arena:
    """What a program with the libraries writes."""
    packages = directory / "lib" / "site-packages"
    for name, code in LIBRARIES.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(code)
    chosen: dict[str, list[object]] = {}
    for name, value in statements.options(clients):
        chosen.setdefault(name, []).append(value)
    session = Session(directory / "s", **chosen)
    (directory / "shop.py").write_text(HEAD + program)
    run(session, interpreter, str(directory / "shop.py"), str(packages))
    (arena,) = session.arenas()
    assert arena.header["values_dropped"] == arena.header["unnamed"] == 0
    return arena


def rows(arena: Arena, context: bool = False) -> list[dict]:
    """Rows of `client_calls` or of `trace_contexts`, in the order written."""
    found = []
    for head, values in arena.values:
        names = np.array([arena.names.get(number) for number in values["name"].tolist()], object)
        of = np.array([FUNCTIONS[number].how in ("h", "x") for number in values["position"].tolist()])
        who = {"ts": values["event"].astype(np.int64), "pid": np.full(len(values), 1, np.int32), "tid": np.full(len(values), head["tid"], np.int32)}
        columns = {name: column[of == context] for name, column in {**who, "name": names, "record": values}.items()}
        make, table = (trace_contexts_table, TRACE_CONTEXTS) if context else (client_calls_table, CLIENT_CALLS)
        found += make(table, columns).to_pylist()
    return found


def told(arena: Arena) -> list[tuple[str, str | None]]:
    return [(row["library"], row["statement"]) for row in rows(arena)]


EACH = r"""
Postgres().execute("UPDATE stock  SET left_over = left_over - 3\n WHERE id = 17 AND name = 'O''Brien SECRET' -- SECRET")
Postgres().execute(query=b'SELECT "odd ""name", $1, $x$ SECRET \' $x$, E\'it\\\'s SECRET\' FROM t')
Postgres().execute(Composed())
Mysql().execute('SELECT `name` FROM `t` WHERE a = "SECRET" # SECRET')
Any().do_execute(None, 'INSERT INTO "t" VALUES (1, \'SECRET\', 2.5e-3, NULL)', ())
Any().do_execute(None, "SELECT 'C:\\' , 'SECRET' FROM t", ())
Session().request("get", "https://user:SECRET@api.example:8443/v1/users/1234/orders?token=SECRET#SECRET")
Session().request(method="POST", url="/bot12:SECRET/send;id=SECRET")
Redis().execute_command("SET", "SECRET", "SECRET", ex=5)
Mongo().command("db", {"find": "SECRET", "filter": {}})
Grpc()._blocking("SECRET")
asyncio.new_event_loop().run_until_complete(Async().fetch("SELECT 'SECRET', $1", "SECRET"))
popen(["/nowhere/tool", "--password=SECRET", "--verbose", "-pSECRET", "SECRET"])
popen("SECRET=1 /nowhere/tool", shell=False)
popen("/nowhere/tool --password SECRET", shell=False)
popen([Path_("/nowhere/SECRET"), "-x"])
Postgres().execute("SELECT 'SECRET" + 990 * "x" + "SECRET', 'SECRET'")
Postgres().execute("SELECT " + 400 * "abc, " + "'SECRET'")
"""
TOLD = [
    ("psycopg", "UPDATE stock SET left_over = left_over - ? WHERE id = ? AND name = ?"),
    ("psycopg", 'SELECT "odd ""name", $1, ?, E?'),
    ("psycopg", "(Composed)"),
    ("pymysql", "SELECT `name` FROM `t` WHERE a = ?"),
    ("SQLAlchemy", 'INSERT INTO "t" VALUES (?, ..., NULL)'),
    ("SQLAlchemy", "SELECT ?"),
    ("requests", "GET https://api.example:8443/v1/users/?/orders"),
    ("requests", "POST /?/send"),
    ("redis", "SET"),
    ("pymongo", "find"),
    ("grpc", "_UnaryUnaryMultiCallable._blocking"),
    ("asyncpg", "SELECT ?, $1"),
    ("subprocess", "/nowhere/tool --password --verbose -p"),
    ("subprocess", "?"),
    ("subprocess", "/nowhere/tool"),
    ("subprocess", "(Path_) -x"),
    ("psycopg", "SELECT ?"),
    ("psycopg", "SELECT " + (198 * "abc, " + "abc")),
]


@every_python
def test_each_library_is_read_and_normalized(interpreter: str, tmp_path: Path) -> None:
    arena = recorded(tmp_path, interpreter, EACH)
    assert told(arena) == TOLD
    assert [row["status"] for row in rows(arena)] == [*["complete"] * 2, "unread", *["complete"] * 12, "unread", "cut", "cut"]
    assert b"SECRET" not in arena.path.read_bytes()


def test_raw_has_all_of_it(tmp_path: Path) -> None:
    arena = recorded(tmp_path, FIRST, EACH, RAW)
    texts = [text or "" for _, text in told(arena)]
    assert len(texts) == len(TOLD) and texts[0].endswith("name = 'O''Brien SECRET' -- SECRET") and "token=SECRET" in texts[6]
    assert texts[12] == "/nowhere/tool --password=SECRET --verbose -pSECRET SECRET"


def test_nothing_is_read_where_it_is_not_asked_for(tmp_path: Path) -> None:
    arena = recorded(tmp_path, FIRST, EACH, "none")
    assert not arena.values and b"SECRET" not in arena.path.read_bytes()


def any_sql(chosen: random.Random) -> str:
    """Tokens that a database may take for SQL, with a secret in every literal and comment of any dialect's; parts of them where it is cut."""
    quoted = [
        "'SECRET'",
        "'it''s SECRET'",
        "'SECRET\\n'",
        "E'\\'SECRET'",
        "'\\\\SECRET'",
        "$$SECRET$$",
        "$a$ SECRET ' $a$",
        "N'SECRET'",
        "X'SECRET'",
        "'SECRET''SECRET'",
    ]
    other = [
        "SELECT",
        "a.b",
        "`a`",
        "(",
        ")",
        ",",
        "= 5",
        "1e-5",
        "%s",
        ":p",
        "$1",
        "/* SECRET ' */",
        "-- SECRET '\n",
        "t[1]",
        ";",
        "WHERE x IN (1, 2, 3)",
        "é",
        "\n",
    ]
    text = " ".join(chosen.choice(quoted if chosen.random() < 0.4 else other) for _ in range(chosen.randrange(1, 60)))
    return text[: chosen.randrange(1, len(text) + 1)] if chosen.random() < 0.3 else text


def test_no_literal_gets_through_in_any_mixture(tmp_path: Path) -> None:
    chosen = random.Random(1)
    texts = [any_sql(chosen) for _ in range(3000)]
    arena = recorded(tmp_path, FIRST, f"for text in {texts!r}:\n Any().do_execute(None, text, ())\n Postgres().execute(text)\n")
    assert len(told(arena)) == 2 * len(texts)
    assert [each for each in told(arena) if each[1] and "SECR" in each[1]] == []
    assert b"SECR" not in arena.path.read_bytes()


def test_very_many_different_statements_keep_their_beginnings(tmp_path: Path) -> None:
    program = "for i in range(20000):\n Postgres().execute('SELECT ' + 40 * 'column, ' + 'c%d' % i)\n"
    found = rows(recorded(tmp_path, FIRST, program))
    cut = [row for row in found if row["status"] == "cut"]
    assert len(found) == 20_000 and len(cut) == 20_000 - (1 << 14)
    assert {row["statement"] for row in cut} == {("SELECT " + 40 * "column, ")[:160]}


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXTS = f"""
header = "00-{TRACE}-{SPAN}-01"
Flask().wsgi_app({{"PATH_INFO": "/", "HTTP_TRACEPARENT": header}}, None)
Flask().wsgi_app({{"PATH_INFO": "/"}}, None)
Flask().wsgi_app({{"HTTP_TRACEPARENT": "00-" + 32 * "0" + "-{SPAN}-01"}}, None)
Flask().wsgi_app({{"HTTP_TRACEPARENT": "SECRET"}}, None)
Flask().wsgi_app(5, None)
call = Starlette().__call__({{"type": "http", "headers": [(b"host", b"a"), (b"traceparent", header.encode())]}}, None, None)
asyncio.new_event_loop().run_until_complete(call)
Span("a", (int("{TRACE}", 16), int("{SPAN}", 16), True))
Span("b", (0, 5))
Span("c", None)
"""


@every_python
def test_trace_contexts_come_from_headers_and_spans(interpreter: str, tmp_path: Path) -> None:
    arena = recorded(tmp_path, interpreter, CONTEXTS)
    found = [(row["source"], row["trace_id"], row["span_id"]) for row in rows(arena, context=True)]
    assert found == [("w3c", TRACE, SPAN), ("w3c", TRACE, SPAN), ("opentelemetry", TRACE, SPAN)]
    assert told(arena) == [] and b"SECRET" not in arena.path.read_bytes()


def test_each_line_of_the_table_is_an_option_that_the_agent_takes() -> None:
    for function in FUNCTIONS:
        how, arguments, name = function.option.split(" ")
        assert len(how) == 1 and len(arguments.split(",")) <= 2 and name.count(".") >= 1
