"""Rows of an experiment by PyTorch's modules: each nn.Module in its place, from programs made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.cli import main
from pytrace_ebpf.experiment import compare
from pytrace_ebpf.experiment.data import Experiment
from pytrace_ebpf.experiment.modules import COLUMNS, forwards, in_modules
from tests.unit.synthetic import Row, Script, write_trace

MS = 1_000_000
ONE, TWO = "cpus=0", "cpus=0,1"
TORCH = "/venv/torch/nn/modules/module.py"
MAIN, WRAPPED, CALL, NET, BASE, SEQUENTIAL, LINEAR, HELPER, ADDMM, BACKWARD, MUL, STRAY = range(12)
FUNCTIONS: list[Row] = [
    (MAIN, "/app/main.py", "main", "main", 1, "main"),
    (WRAPPED, TORCH, "_wrapped_call_impl", "Module._wrapped_call_impl", 2, "torch.nn.modules.module"),
    (CALL, TORCH, "_call_impl", "Module._call_impl", 3, "torch.nn.modules.module"),
    (NET, "/app/net.py", "forward", "Net.forward", 4, "net"),
    (BASE, "/app/net.py", "forward", "Base.forward", 5, "net"),
    (SEQUENTIAL, "/venv/torch/nn/modules/container.py", "forward", "Sequential.forward", 6, "torch.nn.modules.container"),
    (LINEAR, "/venv/torch/nn/modules/linear.py", "forward", "Linear.forward", 7, "torch.nn.modules.linear"),
    (HELPER, "/app/net.py", "helper", "helper", 8, "net"),
    (ADDMM, "", "aten::addmm", "aten::addmm", -1, "<operator>", 0, "operator"),
    (BACKWARD, "/venv/torch/_tensor.py", "backward", "Tensor.backward", 9, "torch._tensor"),
    (MUL, "", "aten::mul", "aten::mul.Tensor", -1, "<operator>", 0, "operator"),
    (STRAY, "/app/other.py", "forward", "Mail.forward", 10, "other"),
]


class Program:
    """A script of calls, a millisecond of work in each but where more is said."""

    def __init__(self) -> None:
        self.script = Script(10, 10).snapshot()

    def call(self, function: int, *within: Any, ms: int = 1) -> None:
        """`function` for `ms` of its own, then each of `within`: a function that calls."""
        self.script.enter(function).run(ms * MS)
        for each in within:
            each()
        self.script.leave()

    def module(self, function: int, *within: Any, ms: int = 1) -> Any:
        """What calls an nn.Module whose forward is `function`."""
        return lambda: self.call(WRAPPED, lambda: self.call(CALL, lambda: self.call(function, *within, ms=ms)))

    def plain(self, function: int, *within: Any, ms: int = 1) -> Any:
        return lambda: self.call(function, *within, ms=ms)


def train(linear: int) -> Program:
    """Net: its base's forward, helper, Sequential of a Sequential of two Linear of `linear` ms and one Linear; then backward."""
    made = Program()
    deep = made.module(LINEAR, made.plain(ADDMM, ms=linear))
    inner = made.module(SEQUENTIAL, deep, deep)
    outer = made.module(SEQUENTIAL, inner, deep)
    net = made.module(NET, made.plain(BASE), made.plain(HELPER, outer, made.plain(MUL, ms=5)))
    made.call(MAIN, net, made.plain(STRAY, made.plain(MUL)), made.plain(BACKWARD, made.plain(MUL, ms=30)))
    return made


def add(experiment: Experiment, setting: str, program: Program) -> None:
    folder = experiment.directory / "traces" / str(len(experiment.runs))
    script = program.script
    processes = [(10, 1, "/usr/bin/python3", "python3 app.py", "3.11.2", "usdt", 0, 0, 0, script.now + MS)]
    trace = write_trace(folder, events=script.events, sched=script.sched, functions=FUNCTIONS, processes=processes, end_ns=script.now + 2 * MS)
    experiment.add(pytrace_ebpf.open(trace), setting, 1, folder / "log")


def settle(directory: Path, *programs: Program) -> Experiment:
    names = (ONE, TWO)[: len(programs)]
    made = Experiment(directory, ["python3", "app.py"], [{"setting": s, "cpus": None, "threads": None, "cores": 1} for s in names], [])
    for name, program in zip(names, programs, strict=True):
        add(made, name, program)
    return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return settle(tmp_path_factory.mktemp("trained"), train(linear=20), train(linear=10))


def by_module(experiment: Experiment, sort: str, setting: str, by: str = "nn.Module") -> dict[str, tuple[int, int]]:
    """(calls, ms) of each module."""
    table = compare.compare(experiment, by, sort)
    table = table[table["setting"] == setting]
    return {row["module"]: (row["calls"], row["wall_ns"] / MS) for row in table.to_dict("records")}


def test_a_row_is_a_module_in_its_place_with_what_it_called_itself(trained: Experiment) -> None:
    assert compare.levels(trained) == ("function", "operator", "nn.Module")
    calling = 2  # a millisecond each in _wrapped_call_impl and _call_impl: the caller's time
    assert by_module(trained, "self", ONE) == {
        "Net": (1, 1 + 1 + 1 + 5 + calling),
        "Net.Sequential": (1, 1 + 2 * calling),
        "Net.Sequential.Sequential": (1, 1 + 2 * calling),
        "Net.Sequential.Linear": (1, 1 + 20),
        "Net.Sequential.Sequential.Linear": (2, 2 * (1 + 20)),
    }


def test_total_time_is_that_of_forward_and_nothing_of_backward(trained: Experiment) -> None:
    own, total = by_module(trained, "self", TWO), by_module(trained, "total", TWO)
    assert {name: calls for name, (calls, _) in total.items()} == {name: calls for name, (calls, _) in own.items()}
    for name, (_, ms) in total.items():
        assert ms == sum(spent for other, (_, spent) in own.items() if f"{other}.".startswith(f"{name}.")), name
    assert total["Net.Sequential.Sequential"] == (1, 1 + 2 * (2 + 11))
    assert compare.compare(trained, "nn.Module", "total").set_index(["module", "setting"]).loc[
        ("Net.Sequential.Linear", TWO), "speed_up"
    ] == pytest.approx(21 / 11)


def test_parts_sum_and_without_modules_above_a_path_it_is_left_out(trained: Experiment) -> None:
    rows = trained.rows(trained.runs[0], [*COLUMNS, "calls", "self_wall_ns"])
    found = in_modules(rows)
    assert 0 < len(found) < len(rows) and not found["qualname"].isin(["main", "Mail.forward", "Tensor.backward"]).any()
    assert rows.loc[forwards(rows), "qualname"].astype(object).value_counts().to_dict() == {
        "Linear.forward": 2,
        "Sequential.forward": 2,
        "Net.forward": 1,
    }
    table = compare.compare(trained, "nn.Module", "self")
    assert (table[["on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns", "unknown_ns"]].sum(axis=1) == table["wall_ns"]).all()


def test_no_paths_are_in_no_modules(trained: Experiment) -> None:
    none = trained.rows(trained.runs[0], [*COLUMNS, "calls"]).head(0)
    assert not len(in_modules(none)) and not len(forwards(none))


@pytest.mark.parametrize("seed", range(10))
def test_against_a_walk_over_the_paths_above(seed: int) -> None:
    dice = np.random.default_rng(seed)
    count = 200
    kinds = [("Module._call_impl", TORCH), ("A.forward", "a.py"), ("B.forward", "b.py"), ("f", "c.py"), ("Module._call_impl", "mine.py")]
    picked = dice.choice(len(kinds), count, p=[0.4, 0.2, 0.1, 0.2, 0.1])
    parent = [0, *(int(dice.integers(max(0, i - 6), i)) for i in range(1, count))]
    paths = pd.DataFrame({"path_id": range(1, count + 1), "parent_path_id": parent, "calls": 1})
    paths["qualname"], paths["file"] = zip(*(kinds[kind] for kind in picked), strict=True)
    expected = {}
    for i in range(count):
        chain, at = [], i
        while at >= 0:
            above = parent[at] - 1
            if kinds[picked[at]][0].endswith(".forward") and above >= 0 and kinds[picked[above]] == kinds[0]:
                chain.append(kinds[picked[at]][0][0])
            at = above
        if chain:
            expected[i + 1] = ".".join(reversed(chain))
    assert len(expected) > 20
    found = in_modules(paths)
    assert dict(zip(found["path_id"], found["module"], strict=True)) == expected


def test_where_only_one_setting_calls_modules_the_other_has_no_rows(tmp_path: Path) -> None:
    without = Program()
    without.call(MAIN, without.plain(HELPER))
    mixed = settle(tmp_path, without, train(linear=1))
    assert compare.levels(mixed)[-1] == "nn.Module"
    table = compare.compare(mixed, "nn.Module", "self")
    assert set(table["setting"]) == {TWO} and table["speed_up"].isna().all()


def test_a_program_without_has_its_python_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = Program()
    without.call(MAIN, without.plain(STRAY, ms=3), without.plain(CALL, without.plain(HELPER)))
    plain = settle(tmp_path, without)
    assert compare.levels(plain)[-1] == "module" and by_module(plain, "self", ONE, "module") == {
        "main": (1, 1),
        "other": (1, 3),
        "torch.nn.modules.module": (1, 1),
        "net": (1, 1),
    }
    assert main.main(["experiment", "--report", str(tmp_path), "--by", "module"]) == 0
    assert "Python modules by self time   4 of 4" in capsys.readouterr().out


def test_the_report_says_which_modules_it_means(trained: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["experiment", "--report", str(trained.directory), "--by", "nn.Module", "--sort", "total"]) == 0
    out = capsys.readouterr().out
    assert "nn.Modules by total time in the forward pass   5 of 5" in out and "\nNet.Sequential.Sequential.Linear\n" in out
    assert main.main(["experiment", "--report", str(trained.directory), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {row["module"] for row in facts["by"]["nn.Module"]} >= {"Net", "Net.Sequential"} and "module" not in facts["by"]
    assert main.main(["experiment", "--report", str(trained.directory), "--by", "module"]) == 0
    assert "Python modules by self time" in capsys.readouterr().out
