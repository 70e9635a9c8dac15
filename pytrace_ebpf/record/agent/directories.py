"""The agent's directories of one recording: one for the processes of each user in each file system, and in each control group with little memory."""

from collections.abc import Iterator, Mapping, Sequence

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.agent.allowance import Allowance, allowance
from pytrace_ebpf.record.agent.directory import AgentDirectory, FileSystemUser
from pytrace_ebpf.record.process.memory_left import own_groups
from pytrace_ebpf.record.process.pinned import Pinned

_Key = tuple[FileSystemUser, str | None]


class Directories:
    """Those that there are, made where they are needed."""

    def __init__(self, options: Sequence[tuple[str, object]], launches: bool) -> None:
        """`launches`: programs are started with the agent. Raises HostError, and TargetError where they would have too little memory."""
        self._options = options
        given = dict(options)
        self._wanted, self._counts_memory = int(str(given["arena_bytes"])), bool(given["memory"])
        self._all: dict[_Key, AgentDirectory] = {}
        self._last: dict[int, AgentDirectory] = {}  # what was prepared last, by the process
        self._unkept: list[AgentDirectory] = []
        self._launches: AgentDirectory | None = None
        if launches:
            own = self._allowance(0, own_groups())
            self._launches = AgentDirectory(options, allowance=own)
            self._all[self._launches.user, own.group if own else None] = self._launches

    def __iter__(self) -> Iterator[AgentDirectory]:
        return iter(list(self._all.values()))

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program is to be started with, that the agent comes with it and its children."""
        return self._launches.environment if self._launches else {}

    @property
    def arena_bytes(self) -> int:
        """The least that an arena may take in any of them."""
        return min((each.arena_bytes for each in self._all.values()), default=self._wanted)

    @property
    def owe(self) -> bool:
        """Whether it is not known yet of one what arenas there are."""
        return any(directory.owes for directory in self._all.values())

    def remark(self, pid: int) -> str:
        """That a process for which this was prepared has little memory, or, 0, programs that are started have; "" where they have not."""
        directory = self._last.get(pid) if pid else self._launches
        return directory.allowance.said if directory and directory.allowance else ""

    def prepare(self, process: Pinned) -> AgentDirectory | None:
        """Put the agent where that process finds it, and nobody else does; None where it has it already. Raises TargetError and HostError."""
        if self._launches and process.credentials.owner is None:
            return None  # which can write nowhere
        user = FileSystemUser.of(process)
        try:
            own = self._allowance(process.pid, process.read("cgroup").decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            raise TargetError(f"process {process.pid} ended meanwhile") from None
        found = self._of(process, user, own)
        self._last = {process.pid: found} if found else {}
        return found

    def _of(self, process: Pinned, user: FileSystemUser, own: Allowance | None) -> AgentDirectory | None:
        key = user, own.group if own else None
        if key in self._all:
            if (shared := self._all[key].allowance) is not None:
                shared.admit(process.pid)
            return self._all[key]
        path = None
        if self._launches:
            # A program that a wrapper started in another root looks there for what it is to load, and has not looked yet.
            path = self._launches.path
            if user.sees_the_files_of(self._launches.user):
                return None  # as another user, or in another group
        process.check()
        self._all[key] = AgentDirectory(self._options, process, path, allowance=own)
        return self._all[key]

    def grow(self) -> None:
        """Let arenas grow where there is little memory, and there is still some."""
        for directory in self._all.values():
            if directory.allowance is not None:
                directory.allowance.grow()

    def _allowance(self, pid: int, groups: str) -> Allowance | None:
        return allowance(pid, groups, self._wanted, self._counts_memory)

    def can_be_used_by(self, process: Pinned) -> bool:
        """Whether a program that was started with the agent can load it and write its arena."""
        return any(directory.can_be_used_by(process) for directory in self._all.values())

    def unkept(self) -> list[AgentDirectory]:
        """Those whose keeper ended since this was asked last: their agents leave, as they do when the tracer has ended."""
        found = [directory for directory in self._all.values() if not directory.is_kept and directory not in self._unkept]
        self._unkept += found
        return found

    def remove(self) -> None:
        """Leave nothing behind in any file system; an agent that is still there leaves by itself."""
        for directory in self._all.values():
            directory.remove()
