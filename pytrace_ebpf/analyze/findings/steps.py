"""What the steps of a training take, as a finding: it leads, since that is what is asked of a training."""

from typing import Any

from pytrace_ebpf.analyze.steps.by_step import by_step, first_ones
from pytrace_ebpf.analyze.steps.sentence import sentence
from pytrace_ebpf.derive.calls.phases import phases

_FEWEST = 5  # steps


def of_steps(trace: Any, of_ns: int) -> list[dict[str, Any]]:
    """A row of findings.COLUMNS of a Trace whose threads were at work for `of_ns`, without those that are null; [] of a program that trains nothing.

    `resource` is the phase with the most time.
    """
    if not of_ns or not phases(trace.functions())["ends"].any():
        return []
    steps = trace.steps()
    steps = steps[~first_ones(steps)]
    table = by_step(steps)
    if not len(table) or table["steps"][0] < _FEWEST:
        return []
    most = table.iloc[1:].sort_values("run_ns", ascending=False, kind="stable").iloc[0]
    ns, share = int(most["run_ns"]), most["run_ns"] / table["run_ns"][0]
    of = f"{table['steps'][0]} steps"
    command = f"pytrace-ebpf report {trace.directory} --by step"
    said = sentence(trace, steps, table)
    return [
        {"rule": "step", "share": ns / of_ns, "ns": ns, "of": of, "of_share": share, "sentence": said, "resource": most["phase"], "command": command}
    ]
