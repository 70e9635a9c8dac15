"""A state more is a line in trace/states.py, one in common.h, and the rule in states.c: columns, sums and reports have it then."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SLEEPING = '    State("sleeping", WAITS, "it slept", "sleeping", "sleeps", "asleep", "+", "+", "#cc79a7"),\n'
EDITS = {
    "pytrace_ebpf/trace/states.py": (")  # fmt: skip\nNAMES", f"{SLEEPING})  # fmt: skip\nNAMES"),
    "pytrace_ebpf/rebuild/common.h": ("STATE(BLOCKED, blocked, HAS_WAITS)\n", "STATE(BLOCKED, blocked, HAS_WAITS) STATE(SLEEPING, sleeping, HAS_WAITS)\n"),
    "pytrace_ebpf/rebuild/states.c": ("    return row->syscall == FUTEX &&", "    if (row->syscall == 230)\n        return SLEEPING;\n    return row->syscall == FUTEX &&"),
}  # fmt: skip
PROGRAM = """
import sys
from pathlib import Path
import pytrace_ebpf
from pytrace_ebpf.cli.main import main
from pytrace_ebpf.trace.states import SPLIT
from tests.unit.synthetic import write_trace
from tests.unit.view.test_page import unpacked
from pytrace_ebpf.trace.schema import CallKind, SchedKind
MS = 10**6
events = [(MS, 7, 7, CallKind.ENTRY, 0, 1, 1), (9 * MS, 7, 7, CallKind.RETURN, 0, 1, 2)]
sched = [(0, 7, 7, SchedKind.IN, 0, 0, -1, 0, 0, 0), (2 * MS, 7, 7, SchedKind.OUT, 0, 1, 230, 0, 0, 0), (6 * MS, 7, 7, SchedKind.WAKING, 0, 0, -1, 0, 0, 0),
         (7 * MS, 7, 7, SchedKind.IN, 0, 0, -1, 0, 0, 0)]
trace = pytrace_ebpf.open(write_trace(Path(sys.argv[1]), events=events, sched=sched))
(call,) = trace.calls().to_dict("records")
assert SPLIT[4:] == ("sleeping_ns",) and [call[name] for name in ("wall_ns", *SPLIT)] == [8 * MS, 3 * MS, 1 * MS, 0, 0, 4 * MS], call
assert call["self_sleeping_ns"] == trace.tree()["sleeping_ns"].max() == 4 * MS and trace.thread_times()["sleeping_ns"].tolist() == [4 * MS]
assert main(["report", sys.argv[1]]) == main(["export", sys.argv[1], "--to", "folded", "--value", "sleeping", "-o", "-"]) == 0
assert main(["report", sys.argv[1], "--html", sys.argv[1] + ".html"]) == 0 and ["sleeping", "#cc79a7"] in unpacked(Path(sys.argv[1] + ".html"))[0]["parts"]
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: cc builds the library with the state")
def test_a_state_more(quick_compiler: str, tmp_path: Path) -> None:
    for folder in ("pytrace_ebpf", "probes", "scripts", "tests"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "rebuild.so", "golden"))
    for name, (old, new) in EDITS.items():
        text = (tmp_path / name).read_text()
        assert text.count(old) == 1
        (tmp_path / name).write_text(text.replace(old, new))
    environment = os.environ | {"CC": quick_compiler}
    subprocess.run(["bash", "scripts/build-libraries.sh"], cwd=tmp_path, env=environment, check=True, timeout=300, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "trace"], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "sleeping 50 %" in done.stdout
