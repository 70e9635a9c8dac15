"""What agents may take of the memory that is left where their programs are: a tenth, all of a control group together, and asked anew as they grow."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.arena import Arena, Damaged
from pytrace_ebpf.record.process.memory_left import Left, memory_left

_SHARE = 10
_LEAST_LEFT = 16 << 20  # with which the agent goes in; twice as much where it counts allocations
_LEAST, _STEP = 1 << 20, 1 << 16  # bytes of an arena, and that are granted at a time
_TABLE = 128 << 20  # of blocks that are counted, with SLOTS of memory.c
_SMALL, _CHUNK_RECORDS = 32 << 20, 1024  # below so much a thread takes smaller chunks


class Allowance:
    """What the agents of one control group, or of a machine that has little memory, may take."""

    def __init__(self, groups: str, left: Left, wanted: int, counts_memory: bool) -> None:
        """`groups`: /proc/PID/cgroup of one of them; `left`: what they have; `wanted`: bytes of an arena where there is enough."""
        self._groups, self.group, self._described = groups, left.group, left.described
        self._halves = 1 + counts_memory  # one half is for the table of blocks
        tenth = left.size // _SHARE // self._halves
        self.arena_bytes, self._first = min(wanted, tenth), max(_LEAST, tenth // 4)
        self._table_bytes = tenth if counts_memory else 0
        self._granted: WeakKeyDictionary[Arena, int] = WeakKeyDictionary()

    @property
    def options(self) -> Sequence[tuple[str, object]]:
        """The agent's, instead of those that it has elsewhere."""
        chunks = [("chunk_records", _CHUNK_RECORDS)] if self.arena_bytes < _SMALL else []
        return [*chunks, ("arena_bytes", self.arena_bytes), ("arena_first", self._first), ("memory_bytes", self._table_bytes)]

    @property
    def said(self) -> str:
        """For a person: that there is little, and why."""
        return f"the agent takes {_mib(self.arena_bytes + self._table_bytes)} of memory at most, a tenth of what is left to {self._described}"

    def admit(self, pid: int) -> None:
        """Raise TargetError where there is no room for the agent of one more process."""
        if self._granted and self._spare() < self._first:
            raise TargetError(
                f"process {pid} gets no agent: those that are there may take a tenth of the memory that is left to {self._described}, "
                "and there is none for one more; raise its limit, or use --sample"
            )

    def add(self, arena: Arena) -> None:
        """One that was found."""
        self._granted[arena] = self._first

    def grow(self) -> None:
        """Grant more to each arena that has used half of what it was granted, as far as there is more to be granted by now."""
        needy = [arena for arena, granted in self._granted.items() if 2 * arena.used > granted < self.arena_bytes]
        spare = self._spare() if needy else 0
        for arena in needy:
            more = min(self._granted[arena], spare) // _STEP * _STEP
            if more > 0:
                try:
                    arena.grant(self._granted[arena] + more)
                except Damaged:  # who reads it finds out
                    continue
                self._granted[arena] += more
                spare -= more

    def _spare(self) -> int:
        used = sum(arena.used for arena in self._granted)
        return (memory_left(self._groups).size + used) // _SHARE // self._halves - sum(self._granted.values())


def allowance(pid: int, groups: str, wanted: int, counts_memory: bool) -> Allowance | None:
    """That of a process in these control groups; None where there is as much as could be wanted.

    Raises TargetError where there is so little that the agent stays out.
    """
    left = memory_left(groups)
    if left.size < _LEAST_LEFT << counts_memory:
        raise TargetError(
            f"process {pid} has {_mib(left.size)} of memory left ({left.described}), of which the agent would take a tenth, too little for it: "
            "raise the limit, or use --sample"
        )
    if left.size >= _SHARE * (wanted + counts_memory * _TABLE):
        return None
    return Allowance(groups, left, wanted, counts_memory)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
