"""A setting of an experiment: the cores and the number of threads that a program is given from outside, and whether it has a GIL."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from pytrace_ebpf.errors import HostError, UsageError

# What the libraries that bring their own threads read when they are loaded; torch takes its intra-op threads from OpenMP.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class Setting:
    """One setting; None leaves the program what it would have by itself."""

    cpus: tuple[int, ...] | None = None
    threads: int | None = None
    gil: str | None = None  # "on" or "off", of a free-threaded build of CPython

    @property
    def name(self) -> str:
        """For example "cpus=0,1 threads=2"; "as is" for one that changes nothing."""
        cpus = [] if self.cpus is None else [f"cpus={_ranges(self.cpus)}"]
        threads = [] if self.threads is None else [f"threads={self.threads}"]
        gil = [] if self.gil is None else [f"gil={self.gil}"]
        return " ".join(cpus + threads + gil) or "as is"

    @property
    def folder(self) -> str:
        """Its name as a file name."""
        return self.name.replace(" ", "_")

    @property
    def cores(self) -> int:
        """Cores that its efficiency is computed with: those given, else as many as it has threads, else all that this process may use."""
        ours = len(os.sched_getaffinity(0))
        return len(self.cpus) if self.cpus is not None else min(self.threads or ours, ours)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables to set."""
        threads = {} if self.threads is None else dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        return threads if self.gil is None else threads | {"PYTHON_GIL": str(int(self.gil == "on"))}

    def command(self, command: Sequence[str]) -> list[str]:
        """The words that start `command` on its cores. Raises HostError."""
        if self.cpus is None:
            return list(command)
        taskset = shutil.which("taskset")
        if taskset is None:
            raise HostError("--cpus needs taskset, which is not here: install util-linux.")
        return [taskset, "-c", ",".join(map(str, self.cpus)), *command]


def settings(cpus: Sequence[str], threads: Sequence[int], gil: Sequence[str] = ()) -> list[Setting]:
    """Every combination of the core lists, the thread counts and "on" and "off" for the GIL, in the order given. Raises UsageError."""
    lists: list[tuple[int, ...] | None] = [*dict.fromkeys(map(core_list, cpus))] or [None]
    counts: list[int | None] = [*dict.fromkeys(threads)] or [None]
    switches: list[str | None] = [*dict.fromkeys(gil)] or [None]
    return [Setting(*each) for each in product(lists, counts, switches)]


def core_list(text: str) -> tuple[int, ...]:
    """The cores of a list as taskset has it ("0,2", "0-3", "0-6:2"), sorted. Raises UsageError."""
    cores: set[int] = set()
    try:
        for part in text.split(","):
            span, _, step = part.partition(":")
            first, dash, last = span.partition("-")
            cores.update(range(int(first), int(last if dash else first) + 1, int(step or 1)))
    except ValueError:
        cores = set()
    if not cores:
        raise UsageError(f"--cpus {text} is not a list of cores; write it as for taskset: 0,1 or 0-3.")
    ours = os.sched_getaffinity(0)
    if not cores <= ours:
        raise UsageError(f"--cpus {text} names cores that this process may not use; those it may use are {_ranges(tuple(sorted(ours)))}.")
    return tuple(sorted(cores))


def _ranges(cores: Sequence[int]) -> str:
    """Sorted cores as a list with ranges of three or more: "0,1", "0-3,6"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
