"""Steps of a made-up training: which there are, of which phases, to the nanosecond; and `report --by step` of them."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.steps.by_step import by_step, drift, first_ones
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import SPLIT
from pytrace_ebpf.trace.steps import PHASES, STEP
from tests.unit.synthetic import FUTEX, GIL, Row, Script, write_trace

SITE = "/venv/lib/python3.11/site-packages/torch"
TRAIN, NEXT, CALL, FORWARD, LOSS, BACKWARD, WRAPPER, ADAM, ZERO, SCHEDULER, REDUCE, LOADER = range(12)
FUNCTIONS: list[Row] = [
    (TRAIN, "/app/train.py", "train", "train", 1, "train", 0),
    (NEXT, f"{SITE}/utils/data/dataloader.py", "__next__", "_BaseDataLoaderIter.__next__", 1, "torch.utils.data.dataloader", 0),
    (CALL, f"{SITE}/nn/modules/module.py", "_wrapped_call_impl", "Module._wrapped_call_impl", 1, "torch.nn.modules.module", 0),
    (FORWARD, "/app/model.py", "forward", "Net.forward", 1, "model", 0),
    (LOSS, f"{SITE}/nn/modules/loss.py", "forward", "CrossEntropyLoss.forward", 1, "torch.nn.modules.loss", 0),
    (BACKWARD, f"{SITE}/_tensor.py", "backward", "Tensor.backward", 1, "torch._tensor", 0),
    (WRAPPER, f"{SITE}/optim/optimizer.py", "wrapper", "Optimizer.profile_hook_step.<locals>.wrapper", 1, "torch.optim.optimizer", 0),
    (ADAM, f"{SITE}/optim/adam.py", "step", "Adam.step", 1, "torch.optim.adam", 0),
    (ZERO, f"{SITE}/optim/optimizer.py", "zero_grad", "Optimizer.zero_grad", 1, "torch.optim.optimizer", 0),
    (SCHEDULER, f"{SITE}/optim/lr_scheduler.py", "step", "LRScheduler.step", 1, "torch.optim.lr_scheduler", 0),
    (REDUCE, f"{SITE}/distributed/distributed_c10d.py", "all_reduce", "all_reduce", 1, "torch.distributed.distributed_c10d", 0),
    (LOADER, f"{SITE}/utils/data/dataloader.py", "_next_data", "_MultiProcessingDataLoaderIter._next_data", 1, "torch.utils.data.dataloader", 0),
]
GLOO = 90  # added to a pid: the thread that reduces
US = 1_000


def batch(life: Script, waited: int = 0, loads: int = 7) -> Script:
    """A batch comes from the loader."""
    life.enter(NEXT).run(loads).enter(LOADER)
    return (life.wait(waited, syscall=FUTEX, address=0x9000, queued=3) if waited else life).leave().leave().run(2)


def forward(life: Script) -> Script:
    """A module calls another, and then a loss."""
    life.enter(CALL).run(10).enter(FORWARD).enter(CALL).run(20).leave().leave().run(5).leave()
    return life.enter(CALL).run(1).enter(LOSS).run(9).leave().leave()


def backward(life: Script, reduced: int = 0) -> Script:
    """Gradients, which other ranks have a part in for so long."""
    life.enter(BACKWARD).run(40)
    return (life.wait(reduced, syscall=FUTEX, address=0x8000, waker=life.pid + GLOO, queued=4) if reduced else life).leave()


def optimize(life: Script) -> Script:
    """The weights make their step, and the rate another."""
    life.enter(WRAPPER).run(1).enter(ADAM).run(15).leave().leave().enter(ZERO).run(2).leave()
    return life.enter(SCHEDULER).run(3).leave()


def step(life: Script, waited: int = 0, reduced: int = 0, tail: int = 6) -> Script:
    """One whole step."""
    return optimize(backward(forward(batch(life, waited)), reduced)).run(tail)


def opened(path: Path, *lives: Script, **more: Any) -> Trace:
    events = [row for life in lives for row in life.events]
    sched = sorted((row for life in lives for row in life.sched), key=lambda row: row[0])
    threads = [(life.pid, life.tid, "main", 0, None) for life in lives] + [(life.pid, life.pid + GLOO, "pt_gloo_runloop", 0, None) for life in lives]
    more = {"end_ns": max(life.now for life in lives) + 1, "threads": threads} | more
    return pytrace_ebpf.open(write_trace(path, events=events, sched=sched, functions=FUNCTIONS, **more))


def begun(pid: int = 7) -> Script:
    return Script(pid, pid, now=100).snapshot().open(TRAIN).run(50)


def phases(trace: Trace, number: int, *patterns: str) -> dict[str, int]:
    rows = trace.steps(patterns=patterns)
    rows = rows[rows["step"] == number]
    return dict(zip(rows["phase"].astype(str), rows["wall_ns"].tolist(), strict=True))


def checked(trace: Trace) -> pd.DataFrame:
    """Its steps, which sum up however they are looked at."""
    rows = trace.steps()
    assert (rows[list(SPLIT)].sum(axis=1) == rows["wall_ns"]).all()
    whole, parts = rows[rows["phase"] == STEP], rows[rows["phase"] != STEP]
    names = ["wall_ns", *SPLIT]
    sums = parts.groupby(["pid", "tid", "step"])[names].sum().reset_index(drop=True)
    assert (sums == whole[names].reset_index(drop=True)).all(axis=None)
    assert (whole["end_ns"] - whole["start_ns"] == whole["wall_ns"]).all()
    return rows


@pytest.mark.parametrize("cuts", [(), (200, 260, 333, 500)])
def test_each_phase_is_that_of_the_innermost_call(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    life = begun()
    for waited in (30, 0, 60):
        step(life, waited)
    trace = opened(tmp_path, batch(life), cuts=cuts)  # the loader has no more
    rows = checked(trace)
    assert rows["step"].max() == 2
    alike = {"step": 121, "data": 7, "forward": 36, "loss": 9, "backward": 40, "optimizer": 21, "other": 8}
    assert phases(trace, 1) == alike
    assert phases(trace, 0) == alike | {"step": 154, "data": 40} and phases(trace, 2) == alike | {"step": 184, "data": 70}
    data = rows[(rows["phase"] == "data") & (rows["step"] == 2)].iloc[0]
    assert [data[name] for name in SPLIT] == [7, 3, 0, 60]
    assert data["start_ns"] == rows[(rows["phase"] == STEP) & (rows["step"] == 2)]["start_ns"].iloc[0]


def test_what_is_waited_for_others_in_backward_is_communication(tmp_path: Path) -> None:
    life = begun()
    step(life, 0, 500)
    life.enter(REDUCE).run(5).wait(50, syscall=FUTEX, waker=life.pid + GLOO, queued=5).run(1).leave()
    trace = opened(tmp_path, batch(life))
    rows = checked(trace)
    assert phases(trace, 0)["communication"] == 504 + 61 and phases(trace, 0)["backward"] == 40
    row = rows[rows["phase"] == "communication"].iloc[0]
    assert [row[name] for name in SPLIT] == [6, 9, 0, 550]


def test_batches_without_gradients_are_no_step_and_those_that_add_up_are_one(tmp_path: Path) -> None:
    life = begun()
    for _ in range(2):
        for _ in range(3):  # gradients of three batches
            backward(forward(batch(life)))
        optimize(life)
        batch(life)  # the end of the loader
        for _ in range(4):
            forward(batch(life))
        batch(life)
    trace = opened(tmp_path, life)
    checked(trace)
    assert trace.steps()["step"].max() == 1
    for number in range(2):
        assert phases(trace, number) == {"step": 3 * 94 + 21, "data": 21, "forward": 108, "loss": 27, "backward": 120, "optimizer": 21, "other": 6}


def test_without_a_loader_the_optimizer_ends_a_step(tmp_path: Path) -> None:
    life = begun()
    for _ in range(3):
        optimize(backward(forward(life.run(8))))
    trace = opened(tmp_path, life)
    checked(trace)
    assert [phases(trace, number)[STEP] for number in range(3)] == [101, 114, 114]
    assert phases(trace, 1) == {"step": 114, "forward": 36, "loss": 9, "backward": 40, "optimizer": 21, "other": 8}


def test_a_thread_that_trains_nothing_has_a_step_for_each_batch(tmp_path: Path) -> None:
    life = begun()
    for _ in range(3):
        forward(batch(life, 10))
    trace = opened(tmp_path, batch(life))
    checked(trace)
    assert [phases(trace, number) for number in range(3)] == [{"step": 67, "data": 20, "forward": 36, "loss": 9, "other": 2}] * 3


def test_steps_that_are_named(tmp_path: Path) -> None:
    life = begun()
    for _ in range(2):
        life.enter(FORWARD).run(4)
        forward(life).run(1).leave()
        batch(life)
    trace = opened(tmp_path, life)
    assert phases(trace, 0, "Net.forward") == {"step": 50, "forward": 36, "loss": 9, "other": 5}
    assert trace.steps()["step"].max() == 1


def test_the_parts_are_null_where_switches_were_lost_or_not_recorded(tmp_path: Path) -> None:
    life = begun()
    for _ in range(3):
        step(life, 10)
    trace = opened(tmp_path / "lost", batch(life), losses=[("sched_ring", 300, 310, 1)])
    rows = trace.steps()
    assert sorted(rows["step"][rows["on_cpu_ns"].isna()].unique()) == [1]
    trace = opened(tmp_path / "none", life, manifest={"scheduling": {"source": None, "why": "not asked"}})
    assert trace.steps()[list(SPLIT)].isna().all(axis=None) and len(trace.steps())


def test_the_rank_is_the_process_s(tmp_path: Path) -> None:
    lives = [batch(step(begun(pid), 0, 50)) for pid in (7, 8)]
    ended = (0, None, None, None, None, None, None)
    processes = [
        (life.pid, 1, "/python3", "train.py", "3.11.2", "agent", *GIL, 0, *ended[1:2], 0, *ended[1:6], life.pid - 7, 0, 2, "run") for life in lives
    ]
    trace = opened(tmp_path, *lives, processes=processes)
    assert trace.steps().groupby("pid")["rank"].first().to_dict() == {7: 0, 8: 1}


def test_nothing_of_a_program_that_trains_nothing(tmp_path: Path) -> None:
    life = begun().enter(FORWARD).run(5).leave()
    assert not len(opened(tmp_path, life).steps())


def made(waits: list[int]) -> pd.DataFrame:
    rows = [(number, 7, 7, phase, ns) for number, wait in enumerate(waits) for phase, ns in ((STEP, 100 + wait), ("data", wait), ("forward", 100))]
    table = pd.DataFrame(rows, columns=["step", "pid", "tid", "phase", "wall_ns"])
    return table.assign(on_cpu_ns=100, runq_wait_ns=0, gil_wait_ns=0, blocked_ns=table["wall_ns"] - 100).astype(dict.fromkeys(SPLIT, "Int64"))


def test_the_first_steps_are_apart_and_drift_is_seen() -> None:
    steps = made([900, 400, *range(0, 40)])
    first = first_ones(steps)
    assert sorted(steps["step"][first].unique()) == [0, 1]
    rest = steps[~first]
    table = by_step(rest).set_index("phase")
    assert list(table.index) == [STEP, "data", "forward"]
    assert table.loc["data", ["steps", "p50_ns", "p95_ns", "max_ns"]].tolist() == [40, 19, 37, 39]
    found = drift(rest)
    assert found["phase"].tolist() == [STEP, "data", "forward"]
    assert found["early_ns"].tolist()[1] < found["late_ns"].tolist()[1]
    assert not first_ones(made([900, 0])).any()  # of so few none is


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_report(tmp_path: Path, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    life = begun()
    step(life, 9_000 * US)
    for number in range(24):
        step(life, (1_000 + (number == 20) * 900) * US)
    trace = opened(tmp_path, batch(life))
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["report", str(trace.directory), "--by", "step"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    assert "Step 21: 1.90ms" in said and "24 steps by phase" in said and "no drift" in said
    assert "A step takes 1.00ms (median of 24), 100 % of it `DataLoader.__next__` waiting for its workers." in " ".join(said.split())
    assert main(["report", str(trace.directory), "--by", "step", "--slowest", "2", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["phase"] for row in facts["rows"]] == [STEP, *(phase for phase in PHASES if phase != "communication")]
    assert [one["step"] for one in facts["slowest"]] == [21, 1]
    assert all(sum(piece["ns"] for piece in one["path"]["pieces"]) == one["wall_ns"] for one in facts["slowest"])
    found = trace.findings()
    assert found["rule"].tolist()[0] == "step" and found["resource"][0] == "data" and found["of"][0] == "24 steps"
