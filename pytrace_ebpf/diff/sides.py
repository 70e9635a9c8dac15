"""What is compared: two sides, each one trace or several of the same program, their calls summed by call path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.analyze.functions.by_function import overall_of_tree
from pytrace_ebpf.analyze.samples.errors import standard_error
from pytrace_ebpf.analyze.samples.sampling import period_of
from pytrace_ebpf.analyze.samples.tree import nodes, untold
from pytrace_ebpf.diff.aligned import aligned
from pytrace_ebpf.errors import TraceError, UsageError
from pytrace_ebpf.experiment.paths import PARTS, SQUARES, TIMES, of_tree
from pytrace_ebpf.trace.reader import Trace

MANIFEST = "manifest.json"
PER = ("run", "second")

_COLUMNS = ("wall_ns", *PARTS)


@dataclass(frozen=True)
class Run:
    """One trace: `paths` as experiment.paths.of_tree has them, `whole` (wall_ns, SPLIT, unknown_ns, of samples also SQUARES) of all outermost calls; calls;
    events lost.

    Times and calls are of the whole recording or, of a Side by the second, of each second of it: so many times as much was `recorded`. `source`: where it is
    read from, while that is open, and its `functions`, with the lines that they are compared at. `period_ns`: between
    samples, 0 where each call was recorded.
    """

    trace: str
    seconds: float
    paths: pd.DataFrame
    whole: dict[str, float | None]
    calls: float
    lost: int
    recorded: float
    period_ns: int
    source: Trace
    functions: pd.DataFrame

    def variance(self, value: str, on_cpu_ns: npt.ArrayLike, square: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Of times `value` (wall, on_cpu, ...) that were sampled, ns^2: from the share that they have of the samples on a core, and from those off it (`square`)."""
        out = np.asarray(square, np.float64)
        if value in ("wall", "on_cpu"):
            count = (np.asarray(on_cpu_ns, np.float64) * self.recorded / self.period_ns).round()
            of = round((self.whole["on_cpu_ns"] or 0) * self.recorded / self.period_ns)
            out = out + (standard_error(count, of) * self.period_ns / self.recorded) ** 2
        return out


@dataclass(frozen=True)
class Side:
    """One side of a comparison: `directory` as it was named; `period_ns`: between samples, 0 where each call was recorded."""

    directory: str
    command: str
    runs: list[Run]
    functions: pd.DataFrame
    sources: tuple[str, ...]
    period_ns: int

    @property
    def whole(self) -> dict[str, float | None]:
        """The mean of the runs' `whole`; null where any is."""
        return {name: _mean([run.whole[name] for run in self.runs]) for name in _COLUMNS}

    @property
    def calls(self) -> float:
        """The mean of the runs' calls."""
        return float(np.mean([run.calls for run in self.runs]))


def traces_in(directory: Path) -> list[Path]:
    """`directory` where it is a trace, else the traces right below it, by name. Raises TraceError where there are none."""
    if (directory / MANIFEST).exists():
        return [directory]
    found = sorted((path.parent for path in directory.glob(f"*/{MANIFEST}")), key=_natural) if directory.is_dir() else []
    if not found:
        raise TraceError(f"{directory} is neither a trace nor a directory with traces: name what pytrace-ebpf run or attach wrote with -o.")
    return found


def both(before: Sequence[Trace], after: Sequence[Trace], names: tuple[str, str], per: str | None) -> tuple[Side, Side, str]:
    """The two sides, and what their times are of, one of PER: `per`, or a run where each trace has a program from its start to its end.

    Functions of `before` have the lines of `after`. Raises UsageError for samples against calls.
    """
    sampled = [any(map(period_of, traces)) for traces in (before, after)]
    if sampled[0] != sampled[1]:
        samples, calls = names if sampled[0] else names[::-1]
        raise UsageError(f"{samples} has samples and {calls} has calls, which cannot be compared; record both alike.")
    chosen = per or ("run" if all(map(_is_whole_run, [*before, *after])) else "second")
    functions = pd.concat([trace.functions() for trace in after], ignore_index=True)
    new = _side(names[1], after, chosen, lambda own: own)
    old = _side(names[0], before, chosen, lambda own: aligned(own, functions))
    return old, new, chosen


def _side(name: str, traces: Sequence[Trace], per: str, lines: Callable[[pd.DataFrame], pd.DataFrame]) -> Side:
    runs, functions = [], []
    for trace in traces:
        functions.append(lines(trace.functions()))
        runs.append(_run(trace, functions[-1], per))
    sources = sorted({source["source"] for trace in traces for source in trace.manifest["sources"] if source["source"]})
    target = traces[0].manifest.get("target") or {}
    together = pd.concat(functions, ignore_index=True)
    return Side(name, str(target.get("command", "")), runs, together, tuple(sources), max(period_of(trace) or 0 for trace in traces))


def _run(trace: Trace, functions: pd.DataFrame, per: str) -> Run:
    period = period_of(trace) or 0
    tree = _of_samples(trace) if period else trace.tree()
    seconds = max(trace.end_ns - trace.start_ns, 1) / 1e9
    over = seconds if per == "second" else 1.0
    paths, whole = of_tree(tree, functions), overall_of_tree(tree)
    numbers = ["calls", *(prefix + name for prefix in ("", "self_") for name in TIMES)]
    paths[numbers] = paths[numbers].astype("Float64") / over
    squares: dict[str, float | None] = {}
    if period:
        own = [prefix + name for prefix in ("", "self_") for name in SQUARES]
        paths[own] = paths[own] / over**2
        roots = tree[tree["depth"] < 0].rename(columns={"total_square": "wall_square"})
        squares = {name: float(roots[name].sum()) / over**2 for name in SQUARES}
    return Run(
        trace=str(trace.directory), seconds=seconds, paths=paths,
        whole={name: None if value is None else value / over for name, value in whole.items()} | squares,
        calls=float(tree["calls"].sum()) / over, lost=sum(int(count) for count in trace.manifest["lost"].values()), recorded=over, period_ns=period, source=trace,
        functions=functions,
    )  # fmt: skip


def _of_samples(trace: Trace) -> pd.DataFrame:
    """trace.tree() with SQUARES."""
    found = nodes(trace)
    return found.assign(**{name: pd.array([pd.NA] * len(found), "Int64") for name in untold(trace)})


def _is_whole_run(trace: Trace) -> bool:
    """Whether it has all of a program, from its start to its end."""
    processes = trace.processes()
    own = processes[processes["pid"] == (trace.manifest.get("target") or {}).get("pid")]
    return trace.whole is trace and trace.manifest["argv"][1:2] == ["run"] and bool(len(own)) and bool(own["end_ns"].notna().all())


def _mean(values: Sequence[Any]) -> float | None:
    return None if any(value is None for value in values) else float(np.mean(values))


def _natural(path: Path) -> tuple[int, str]:
    """10 comes after 9."""
    return (len(path.name), path.name) if path.name.isdigit() else (0, path.name)
