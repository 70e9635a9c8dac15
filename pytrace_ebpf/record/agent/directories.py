"""The agent's directories of one recording: one for the processes of each user in each file system."""

from collections.abc import Iterator, Mapping, Sequence

from pytrace_ebpf.record.agent.directory import AgentDirectory, FileSystemUser
from pytrace_ebpf.record.process.pinned import Pinned


class Directories:
    """Those that there are, made where they are needed."""

    def __init__(self, options: Sequence[tuple[str, object]], launches: bool) -> None:
        """`launches`: programs are started with the agent. Raises HostError."""
        self._options = options
        self._all: dict[FileSystemUser, AgentDirectory] = {}
        self._unkept: list[AgentDirectory] = []
        self._launches = AgentDirectory(options) if launches else None
        if self._launches:
            self._all[self._launches.user] = self._launches

    def __iter__(self) -> Iterator[AgentDirectory]:
        return iter(list(self._all.values()))

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program is to be started with, that the agent comes with it and its children."""
        return self._launches.environment if self._launches else {}

    def of(self, process: Pinned) -> AgentDirectory:
        """That of a process for which it was prepared."""
        return self._all[FileSystemUser.of(process)]

    def prepare(self, process: Pinned) -> None:
        """Put the agent where that process finds it, and nobody else does. Raises TargetError and HostError."""
        if self._launches and process.credentials.owner is None:
            return  # it has the agent already, which can write nowhere
        user = FileSystemUser.of(process)
        if user in self._all:
            return
        path = None
        if self._launches:
            # A program that a wrapper started in another root looks there for what it is to load, and has not looked yet.
            path = self._launches.path
            if user.sees_the_files_of(self._launches.user):
                return  # as another user: it has the agent, which can write nowhere
        process.check()
        self._all[user] = AgentDirectory(self._options, process, path)

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
