"""Which rank of a distributed job a process is: what its launcher says in the environment that the program was started with.

A program can make up all of it: numbers are bounded, and what is none is passed over.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from pytrace_ebpf.record.process.pinned import Pinned

UNKNOWN: dict[str, Any] = {"rank": None, "local_rank": None, "world_size": None, "job": None}
"""The columns of schema.PROCESSES where nothing is known."""
_MOST_BYTES = 1 << 20  # of an environment
_MOST_RANKS = 1 << 24
_MOST_DIGITS = 8
_LONGEST = 200  # characters of a job's name


class _Launcher(NamedTuple):
    """Names of variables; "" for none."""

    rank: str
    local_rank: str
    world_size: str
    job: str


# The first one that says a rank counts: torchrun may run below Slurm, and not the other way round.
_LAUNCHERS = (
    _Launcher("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    _Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    _Launcher("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "PMI_JOBID"),
    _Launcher("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_JOB_ID"),
)
_JOBS = ("RAY_JOB_ID", "SPARK_APPLICATION_ID", "DASK_SCHEDULER_ADDRESS")  # of those whose processes have no ranks
_NAMES = {name.encode() for name in (*itertools.chain.from_iterable(_LAUNCHERS), *_JOBS)}


def rank_of(process: Pinned) -> dict[str, Any]:
    """Those columns of schema.PROCESSES of a process; UNKNOWN where it has ended."""
    try:
        lines = process.read("environ", _MOST_BYTES).split(b"\0")
    except OSError:
        return dict(UNKNOWN)
    pairs = (line.partition(b"=") for line in lines)
    return said({name.decode(): value.decode(errors="replace") for name, _, value in pairs if name in _NAMES})


def said(environment: Mapping[str, str]) -> dict[str, Any]:
    """The same of what these variables say."""
    others = next((environment[name] for name in (*(each.job for each in _LAUNCHERS[::-1]), *_JOBS) if environment.get(name)), None)
    for launcher in _LAUNCHERS:
        rank, local_rank, size = (_number(environment.get(name, "")) for name in launcher[:3])
        if rank is not None and size is not None and rank < size:
            local_rank = local_rank if local_rank is not None and local_rank < size else None
            job = environment.get(launcher.job) or others
            return {"rank": rank, "local_rank": local_rank, "world_size": size, "job": job and job[:_LONGEST]}
    return UNKNOWN | {"job": others and others[:_LONGEST]}


def _number(text: str) -> int | None:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
    return number if number is not None and number <= _MOST_RANKS else None
