"""An assistant asks over the protocol, by the SDK's own client: it gets what the commands say, and nothing from elsewhere."""

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from pytrace_ebpf import self_command
from tests.unit.synthetic import sample


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    sample(tmp_path / "traces" / "week" / "shop")
    sample(tmp_path / "secret")
    (tmp_path / "traces" / "link").symlink_to(tmp_path / "secret")
    return tmp_path / "traces"


def ask(traces: Path, question: Callable[[Client], Awaitable[Any]], *options: str) -> Any:
    """What `question` returns of a client of a server of its own."""
    words = self_command.command("mcp", "--directory", str(traces), *options)

    async def asked() -> Any:
        async with Client(StdioServerParameters(command=words[0], args=words[1:])) as client:
            return await question(client)

    return anyio.run(asked)


def said(traces: Path, *questions: tuple[str, dict[str, Any]]) -> list[tuple[bool, str]]:
    """Of each tool with its arguments, asked of one server: whether it failed, and the text."""

    async def question(client: Client) -> Any:
        return [await client.call_tool(tool, arguments) for tool, arguments in questions]

    return [(bool(found.is_error), "".join(part.text for part in found.content)) for found in ask(traces, question)]


def test_tools_read_unless_recording_is_allowed(traces: Path) -> None:
    async def tools(client: Client) -> Any:
        return (await client.list_tools()).tools

    found = {tool.name: tool for tool in ask(traces, tools)}
    assert set(found) == {"traces", "info", "report", "diff", "sql", "dump"}
    assert all(tool.description and tool.annotations.read_only_hint for tool in found.values())
    allowed = {tool.name: tool for tool in ask(traces, tools, "--record")}
    assert set(allowed) == {*found, "attach"} and not allowed["attach"].annotations.read_only_hint


def test_a_trace_is_found_and_asked_about(traces: Path) -> None:
    shop = {"trace": "week/shop"}
    answers = said(
        traces,
        ("traces", {}),
        ("report", shop | {"top": 3}),
        ("report", shop | {"by": "path", "what_if": "gil"}),
        ("info", shop),
        ("sql", shop | {"query": "SELECT count(*) AS calls FROM calls"}),
        ("diff", {"before": "week/shop", "after": "week/shop"}),
        ("dump", {"pid": os.getpid()}),
    )
    assert not any(failed for failed, _ in answers)
    found, report, path, info, sql, diff, dump = (json.loads(text) for _, text in answers)
    assert [(row["trace"], row["command"]) for row in found] == [("week/shop", "python3 app.py")]  # not what a link leads to
    assert len(report["rows"]) == 3 and report["findings"]
    assert path["what_if"] and path["rows"] is not None
    assert info["state"] == "complete" and sql["rows"][0]["calls"] > 0 and diff["rows"] is not None and dump["threads"]


QUESTIONS = {
    "does not lie below": [("info", {"trace": "../secret"}), ("info", {"trace": "link"}), ("report", {"trace": "/etc"})],
    "is not a trace": [("report", {"trace": "week"})],
    "there is no report by nothing": [("report", {"trace": "week/shop", "by": "nothing"})],
    "'soon' is not a time": [("report", {"trace": "week/shop", "since": "soon"})],
    "file system operations are disabled": [("sql", {"trace": "week/shop", "query": "SELECT * FROM read_csv('/etc/passwd')"})],
    "does not exist": [("dump", {"pid": 2**31 - 1})],
}


def test_what_cannot_be_answered_is_a_sentence(traces: Path) -> None:
    asked = [(sentence, question) for sentence, questions in QUESTIONS.items() for question in questions]
    for (sentence, question), (failed, text) in zip(asked, said(traces, *(question for _, question in asked)), strict=True):
        assert failed and sentence in text and "Traceback" not in text, (question, text)
