"""What is made of counted instructions: sums over segments, by form and function, where they stay general; and the report of it."""

import json
from pathlib import Path

import numpy as np
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.opcodes import STATES, instructions, name_of
from tests.unit.synthetic import Row, write_trace

COUNTED = {"options": {"filters": {"opcodes": "exact"}}}
FUNCTIONS: list[Row] = [(number, f"/app/{name}.py", name, name, 3, "app", 0, "python") for number, name in enumerate(("adds", "reads"))]
EVENTS: list[Row] = [(0, 10, 11, 0, 0, 1, -1), (900, 10, 11, 1, 0, 1, 9), (0, 20, 21, 0, 1, 1, -1), (900, 20, 21, 1, 1, 1, 9)]
ROWS: list[Row] = [
    (100, 10, 0, 4, "BINARY_OP", "BINARY_OP_ADD_INT", "specialized", 60, 600),
    (500, 10, 0, 4, "BINARY_OP", "BINARY_OP_ADD_INT", "specialized", 40, 400),
    (500, 10, 0, 5, "BINARY_OP", None, "generic", 30, 90),
    (500, 20, 1, 6, "BINARY_OP", None, "generic", 50, 50),
    (500, 20, 1, -1, "LOAD_ATTR", None, "unknown", 20, 10),
    (500, 20, 1, 6, "LOAD_FAST", None, "never", 700, 70),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace", events=EVENTS, functions=FUNCTIONS, opcodes=ROWS, cuts=[300], end_ns=1000, manifest=COUNTED)


def found(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict:
    assert main(["report", str(path), "--by", "opcode", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_are_added_up_by_form(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = found(path, capsys)
    rows = [(row["opcode"], row["specialized"], row["state"], row["hits"], row["wall_ns"], row["qualname"]) for row in facts["rows"]]
    assert rows == [
        ("BINARY_OP", "BINARY_OP_ADD_INT", "specialized", 100, 1000, "adds"),
        ("BINARY_OP", None, "generic", 80, 140, "reads"),
        ("LOAD_FAST", None, "never", 700, 70, "reads"),
        ("LOAD_ATTR", None, "unknown", 20, 10, "reads"),
    ]
    assert facts["shares"] == {"hits": 900, "specialized": 100, "generic": 80, "unknown": 20}
    by_function = [[each[name] for name in ("qualname", "hits", "wall_ns", "specialized", "generic", "unknown")] for each in facts["by_function"]]
    assert by_function == [["adds", 130, 1090, 100, 30, 0], ["reads", 770, 130, 0, 50, 20]]
    assert facts["by_function"][1]["opcodes"][0] == {"opcode": "LOAD_FAST", "hits": 700}
    assert [(each["qualname"], each["line"], each["opcode"], each["hits"]) for each in facts["generic"]] == [
        ("reads", 6, "BINARY_OP", 50),
        ("adds", 5, "BINARY_OP", 30),
    ]
    assert not facts["wrong_sums"]


def test_a_window_has_the_looks_within(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pytrace_ebpf.open(path).window(0, 300).opcodes()["hits"].tolist() == [60]
    assert found(path, capsys, "--pid", "20")["shares"]["hits"] == 770
    assert main(["report", str(path), "--by", "opcode", "--tid", "11"]) == 2
    assert capsys.readouterr().err == "pytrace-ebpf: Instructions are counted of a program, not of each thread; leave out --tid and --only thread.\n"


def test_a_person_sees_what_is_known_of_them(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(path), "--by", "opcode"]) == 0
    said = capsys.readouterr().out
    assert "BINARY_OP_ADD_INT (BINARY_OP)" in said and "BINARY_OP, not specialized" in said and "LOAD_ATTR, not known" in said
    assert "200 of them CPython can specialize: 50 % it had before" in " ".join(said.split())
    assert "What it cost to count instructions is not in this." in " ".join(said.split())


def test_without_instructions_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "trace", events=EVENTS, functions=FUNCTIONS, end_ns=1000, manifest=COUNTED)
    assert main(["report", str(path), "--by", "opcode"]) == 0
    assert "No instruction was counted: did a function of --opcodes-of run?" in capsys.readouterr().out


def test_what_stood_in_the_code_says_whether_it_is_specialized() -> None:
    def state(version: str, general: str, form: str | None) -> str:
        numbers = {name_of(version, number)[0]: number for number in range(256)}
        of = instructions(version).states(np.array([numbers[general]]), np.array([numbers[form] if form else 0]))
        return STATES[int(of[0])]

    assert state("3.13.1", "BINARY_OP", "BINARY_OP_ADD_INT") == "specialized"
    assert state("3.13.1", "BINARY_OP", "BINARY_OP") == state("3.11.2", "BINARY_OP", "BINARY_OP_ADAPTIVE") == "generic"
    assert state("3.13.1", "BINARY_OP", None) == state("3.13.1", "CALL", "INSTRUMENTED_CALL") == "unknown"
    assert (
        state("3.11.2", "LOAD_FAST", "LOAD_FAST__LOAD_FAST") == state("3.14.0", "LOAD_CONST", None) == state("3.8.1", "BINARY_ADD", None) == "never"
    )
