"""Samples by the instruction that the innermost frame was at, as CPython had specialized it."""

import pandas as pd

from pytrace_ebpf.analyze.samples.errors import with_errors
from pytrace_ebpf.analyze.samples.paths import segments
from pytrace_ebpf.trace.opcodes import name_of
from pytrace_ebpf.trace.reader import Trace


def by_opcode(trace: Trace, period: int, of: int) -> pd.DataFrame:
    """One row per instruction and function: opcode, name, generic, func_id, qualname, file, first_line, self_ns, self_samples, self_error_ns.

    Most samples first. Programs of several versions of CPython have rows of their own where a name differs.
    """
    versions = trace.processes().set_index("pid")["python_version"].fillna("").to_dict()
    counted: dict[tuple[str, str, int], tuple[int, int]] = {}
    for samples, stacks in segments(trace, native=False):
        known = samples[(samples["opcode"] >= 0) & (samples["off_ns"] == 0)].merge(stacks[["stack_id", "func_id"]], on="stack_id")
        sums = known.groupby(["pid", "opcode", "func_id"])[["on_cpu_ns", "samples"]].sum()
        for (pid, opcode, func_id), (spent, count) in zip(sums.index, sums.to_numpy(), strict=True):
            key = (*name_of(str(versions.get(pid, "")), int(opcode)), int(func_id))
            before = counted.get(key, (0, 0))
            counted[key] = before[0] + int(spent), before[1] + int(count)
    table = pd.DataFrame([(*key, *sums) for key, sums in counted.items()], columns=["name", "generic", "func_id", "self_ns", "self_samples"])
    table = table.astype({"self_ns": "int64", "self_samples": "int64", "func_id": "int64"})
    names = trace.functions()[["func_id", "qualname", "file", "first_line"]]
    table = with_errors(table.merge(names, how="left", on="func_id"), period, of)
    table["first_line"] = table["first_line"].fillna(-1).astype("int64")
    return table.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)


def in_total(table: pd.DataFrame, period: int, of: int) -> pd.DataFrame:
    """by_opcode()'s rows by instruction alone: name, generic, self_ns with samples and error; and the function that has most of it."""
    most = table.drop_duplicates("name")[["name", "func_id", "qualname", "file", "first_line"]]
    sums = table.groupby(["name", "generic"])[["self_ns", "self_samples"]].sum().reset_index()
    joined = with_errors(sums, period, of).merge(most, on="name")
    return joined.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
