"""`--opcodes exact` on a live program: every instruction as often as the interpreter reports it, and their time the functions' own."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.samples.by_opcode import by_opcode
from pytrace_ebpf.analyze.samples.errors import standard_error
from pytrace_ebpf.trace.opcodes import name_of
from tests.bpf.conftest import Recorder, lost
from tests.conftest import PATIENCE_S, Python, Target

pytestmark = [pytest.mark.sources("agent"), pytest.mark.gil]
STANDARD_ERRORS = 4  # and
ROUGH = 0.03  # of what a busy machine does to one of two runs


def test_a_program_of_every_kind_of_line(python: Python, run: Callable[..., tuple]) -> None:
    command = python.command("lines")
    truth = subprocess.run(python.command("opcode_truth", command[-1]), capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    directory, ended = run(command, "--source", "agent", "--opcodes", "exact")
    assert ended.returncode == 0, ended.stderr
    trace = pytrace_ebpf.open(directory)
    assert not lost(trace)
    opcodes = trace.opcodes().merge(trace.functions(), on="func_id").query("file == @command[-1]")
    if python.minor >= 12:
        calls = trace.tree().query("calls > 0").groupby("func_id")["calls"].sum()
        resumes = opcodes[opcodes["opcode"] == "RESUME"].groupby("func_id")["hits"].sum()
        plain = trace.functions().set_index("func_id").loc[resumes.index, "flags"] & (0x20 | 0x80 | 0x200) == 0
        assert len(resumes) and resumes[plain].equals(calls.loc[resumes.index][plain].astype(resumes.dtype))
        opcodes = opcodes[opcodes["opcode"] != "RESUME"]
    found = opcodes.assign(line=opcodes["line"].clip(lower=0)).groupby(["name", "first_line", "line", "opcode"], observed=True)["hits"].sum()
    expected = Counter[str]()
    for place, count in json.loads(truth.stdout.splitlines()[-1]).items():
        function, number = place.rsplit(":", 1)
        expected[f"{function}:{name_of(f'3.{python.minor}', int(number))[0]}"] += count
    assert {":".join(map(str, place)): count for place, count in found.items()} == expected


def test_attached_to_a_warm_program(python: Python, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """The time of a function's instructions is its own, with that of calls that are not counted; of what it ran before, the forms are known from 3.11 on."""
    process = target("opcodes", "--wait", python=python)
    recorder = attach(process.pid, "--opcodes", "exact", "--opcodes-of", "opcodes.adds")
    process.go()
    process.done()
    trace = pytrace_ebpf.open(recorder.finish())
    assert not lost(trace)
    functions, opcodes = trace.functions().set_index("func_id"), trace.opcodes()
    assert set(functions.loc[opcodes["func_id"], "name"]) == {"adds"}
    adds = opcodes[opcodes["opcode"].isin(["BINARY_OP", "BINARY_ADD"])]
    total = trace.tree().query("calls > 0").groupby("func_id")["total_ns"].sum().loc[int(adds["func_id"].iloc[0])]  # Box.__add__ is not counted
    assert 0.9 * total < opcodes["wall_ns"].sum() < 1.1 * total
    assert adds["hits"].sum() == 3 * 100_000
    forms = {key: int(hits) for key, hits in adds.groupby(["line", "state"], observed=True)["hits"].sum().items()}
    first = int(functions.loc[int(adds["func_id"].iloc[0]), "first_line"])
    known = ("specialized", "specialized", "generic") if python.minor >= 11 else ("never",) * 3
    assert forms == {(first + 3 + k, state): 100_000 for k, state in enumerate(known)}


@pytest.mark.measured
def test_shares_of_samples_agree(python: Python, tmp_path: Path, run: Callable[..., tuple]) -> None:
    """Of instructions that take so long that counting them makes no difference."""
    directories = []
    for options in (("--opcodes", "exact"), ("--sample", "997")):
        directories.append(tmp_path / options[0].strip("-"))
        _, ended = run(python.command("opcodes", "--long"), *options, "--output", str(directories[-1]))
        assert ended.returncode == 0, ended.stderr
    exact, sampled = (pytrace_ebpf.open(directory) for directory in directories)
    names = exact.functions().set_index("func_id")["name"]
    rows = exact.opcodes()
    rows = rows[rows["func_id"].map(names) == "long"].groupby("opcode", observed=True)["wall_ns"].sum()
    period = sampled.manifest["sampling"]["period_ns"]
    samples = by_opcode(sampled, period, 1 << 30).query("qualname == 'long'").groupby("generic")["self_ns"].sum() // period
    assert samples.sum() > 100
    long = rows[rows > 0.1 * rows.sum()] / rows.sum()
    assert len(long) == (2 if python.minor == 8 else 3)  # in 3.8 `in` is a comparison
    for name, share in long.items():
        error = standard_error(np.array([share * samples.sum()]), int(samples.sum()))[0] / samples.sum()
        assert abs(samples.get(name, 0) / samples.sum() - share) < STANDARD_ERRORS * error + ROUGH, (name, share, dict(samples))
