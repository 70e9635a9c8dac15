"""Steps and ranks of a real training of two ranks, of which one is planted to be late: against the timers in it, and for what reason."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import pytrace_ebpf
from pytrace_ebpf.analyze.steps.by_rank import by_rank, late, with_ranks
from tests.bpf.conftest import COMMAND
from tests.torch.conftest import PATIENCE_S

PROGRAM = Path(__file__).parent / "late_rank.py"
STEPS = 12
PLANTED = {"data": ("data", {"blocked_ns"}), "work": ("forward", {"on_cpu_ns", "runq_wait_ns"})}  # work needs a core, which others may have


@pytest.mark.parametrize(("why", "rank"), [("data", 1), ("work", 0)])
def test_steps_are_as_long_as_the_program_says_and_the_late_rank_is_found(torch_python: Path, tmp_path: Path, why: str, rank: int) -> None:
    words = [str(torch_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM), why, str(tmp_path / "took")]
    run = [*COMMAND, "run", "-o", str(tmp_path / "trace"), "--", "env", f"LATE={rank}", *words]
    subprocess.run(run, stdin=subprocess.DEVNULL, check=True, timeout=PATIENCE_S)
    trace = pytrace_ebpf.open(tmp_path / "trace")
    steps, processes = trace.steps(), trace.processes().dropna(subset=["rank"])
    assert {*zip(processes["rank"], processes["local_rank"], processes["world_size"], strict=True)} == {(0, 0, 2), (1, 1, 2)}
    phase, ways = PLANTED[why]
    for each in range(2):
        took = json.loads((tmp_path / f"took-{each}.json").read_text())
        own = steps[steps["rank"] == each]
        assert own["step"].max() == STEPS - 1 == len(took) - 1
        for name in ("step", phase) if each == rank else ("step",):
            said = np.array([step[name] for step in took])
            ratios = own["wall_ns"][own["phase"] == name].to_numpy() / said  # of some others had the core between a timer and its call
            assert abs(np.median(ratios) - 1) < 0.01
    rows = with_ranks(steps, trace.processes())
    came_late = late(rows)
    first = by_rank(rows, came_late).iloc[0]
    assert first["rank"] == rank and first["late"] >= STEPS - 1 and first["phase"] == phase and first["way"] in ways
