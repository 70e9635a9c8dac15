"""The directories through which the tracer and the agents in the traced processes find each other.

What a process executes or obeys (the library, the options, the script, the lock that shows that the tracer is alive) lies in
one that nobody else can change. What a process writes (its arena, and why it could not load the library) lies in one that
nobody else can look into. Both serve the processes of one user in one user namespace that see one file system, and no
others, and both are that user's: a keeper makes them, with that user's rights alone, so that nothing that is put in their way, or in
their place, can lead to more than that user could do anyway. This process touches no name there.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.agent.agent_library import agent_library
from pytrace_ebpf.record.agent.allowance import Allowance
from pytrace_ebpf.record.agent.arena import CHUNKS_START, Arena, sentence
from pytrace_ebpf.record.agent.keeper_client import Keeping, Rights
from pytrace_ebpf.record.agent.leftovers import PREFIX, PROGRAM_PLACES
from pytrace_ebpf.record.agent.script import SCRIPT, script
from pytrace_ebpf.record.process.pinned import Descriptor, Identity, Pinned, own_surroundings
from pytrace_ebpf.record.rights.openat2 import Unfit
from pytrace_ebpf.record.rights.user import callers_environment, invoking_user

_ENOUGH = 32 << 20  # bytes that must be free for arenas
# An arena may grow to a fourth of what is free: a container's /dev/shm is small, and the program's own.
_SHARE = 4
_MOST_FAILURE = 4096  # bytes of it that are read
_MOST_REFUSED = 1000  # names of arenas


@dataclass(frozen=True)
class FileSystemUser:
    """A user in one file system: one directory serves all processes that run as that user and see those files."""

    mount_namespace: Identity
    root: Identity
    user_namespace: Identity
    uid: int  # as this process sees it

    @classmethod
    def of(cls, process: Pinned) -> "FileSystemUser":
        """Of a process. Raises TargetError for one that acts for several users, so that its files have no one owner."""
        owner = process.credentials.owner
        if owner is None:
            raise TargetError(
                f"process {process.pid} acts for several users (its real, effective and saved ids differ), "
                "so no agent is let into it; use --source usdt where its Python has probes"
            )
        namespaces = process.surroundings.namespaces
        return cls(namespaces["mnt"], process.surroundings.root, namespaces["user"], owner)

    @classmethod
    def of_a_launch(cls) -> "FileSystemUser":
        """Of the programs that this process starts, which are the user's who called sudo."""
        user, ours = invoking_user(), own_surroundings()
        return cls(ours.namespaces["mnt"], ours.root, ours.namespaces["user"], user.pw_uid if user else os.geteuid())

    def sees_the_files_of(self, other: "FileSystemUser") -> bool:
        """Whether both see one file system."""
        return (self.mount_namespace, self.root) == (other.mount_namespace, other.root)


class AgentDirectory:
    """The agent with its options, in use as long as this process lives. Raises HostError where there is no place for it."""

    def __init__(
        self,
        options: Sequence[tuple[str, object]],
        process: Pinned | None = None,
        path: str | None = None,
        library: Path | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """`process`: one that it is for, the programs that this process starts where it is None.

        path     where the target looks for it, if that is settled
        library  the agent, where it is another than the built one
        allowance  what the agents may take, where there is little memory
        """
        self.allowance = allowance
        self.user = FileSystemUser.of(process) if process else FileSystemUser.of_a_launch()
        self._waiting: dict[str, Descriptor] = {}  # arenas that were neither taken nor refused yet
        self._refused = 0
        self._lost: list[str] = []  # whose descriptors did not arrive
        try:
            self.library = Descriptor(os.open(library or agent_library(), os.O_RDONLY))
            root = Descriptor(self._open_root(process))
            self._keeper = Keeping(_rights(self.user, process), root.fileno())
        except OSError as error:
            raise HostError(f"the agent cannot be put where the target would find it ({error.strerror or error})") from error
        try:
            self._make([*options, *(allowance.options if allowance else ())], path)
        except (OSError, EOFError, HostError) as error:
            self.remove()
            if isinstance(error, HostError):
                raise
            why = (
                error.strerror or str(error)
                if isinstance(error, OSError)
                else f"what makes files with the rights of user {self.user.uid} ended, or got no answer"
            )
            raise HostError(f"the agent cannot be put where the target would find it ({why})") from error

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a program load the agent, and its children."""
        before = (callers_environment() or os.environ).get("LD_PRELOAD")
        library = f"{self.path}/agent.so"
        return {"LD_PRELOAD": f"{library}:{before}" if before else library}

    @property
    def keeper(self) -> int:
        """The process that makes and opens its files."""
        return self._keeper.pid

    @property
    def is_kept(self) -> bool:
        """Whether new arenas are still told of; else the agents find nobody there, and leave."""
        return self._keeper.is_there

    @property
    def owes(self) -> bool:
        """Whether it is not known yet what arenas there are."""
        return self._keeper.owes

    @property
    def why_unkept(self) -> str:
        """What to say then."""
        return f"the process that opens files with the rights of user {self.user.uid} ended, so the calls of its programs are recorded no further"

    def found(self, arena: Arena) -> None:
        """An arena of it is read from now on."""
        if self.allowance is not None:
            self.allowance.add(arena)

    def serves(self, process: Pinned) -> bool:
        """Whether that is one of the processes it is for."""
        return process.credentials.owner is not None and FileSystemUser.of(process) == self.user

    def can_be_used_by(self, process: Pinned) -> bool:
        """Whether a program that was started with the library finds it, and may write its arena."""
        owner = process.credentials.owner
        return owner == self.user.uid and FileSystemUser.of(process).sees_the_files_of(self.user)

    def arenas(self) -> Iterator[tuple[str, Descriptor | Unfit]]:
        """(name, open file) of each arena that is there, or why it is none; of so many that it takes no time."""
        with suppress(OSError, EOFError):
            if (answer := self._keeper.ask_soon("look", again=self._lost)) is not None:
                told, files = answer
                self._lost = told["names"][len(files) :]
                self._waiting |= dict(zip(told["names"], files, strict=False))
                yield from ((name, Unfit(why)) for name, why in told["unfit"].items())
        for name, file in list(self._waiting.items()):
            yield name, _unfit(file, self.user.uid) or file

    def refuse(self, name: str) -> bool:
        """Ignore the file of that name from now on; False where so many are ignored already that no more need be reported."""
        self._let_go(name, unlink=False)
        self._refused += 1
        return self._refused <= _MOST_REFUSED

    def forget(self, name: str) -> None:
        """Remove an arena's name: processes that have it mapped keep it."""
        self._let_go(name, unlink=True)

    def _let_go(self, name: str, unlink: bool) -> None:
        self._waiting.pop(name, None)
        with suppress(OSError, EOFError):
            self._keeper.ask("forget", name=name, unlink=unlink)

    def failure(self) -> str | None:
        """Why the script could not load the library: it says so in a file, which is gone then; None where there is none."""
        with suppress(OSError, EOFError):
            told, _ = self._keeper.ask("failure", most=_MOST_FAILURE)
            if "said" in told:
                return sentence(bytes.fromhex(told["said"]))
            if "unfit" in told:
                return f"the file that says why {told['unfit']}"
        return None

    def remove(self) -> None:
        """Remove everything; agents that are still there notice that the lock is free, and leave."""
        self._keeper.end()
        self._waiting.clear()

    def _open_root(self, process: Pinned | None) -> int:
        if process is None or self.user.sees_the_files_of(FileSystemUser.of_a_launch()):  # it may have ended
            return os.open("/", os.O_PATH | os.O_DIRECTORY)
        return process.open("root", os.O_PATH | os.O_DIRECTORY)

    def _make(self, options: Sequence[tuple[str, object]], path: str | None) -> None:
        name, place = (Path(path).name, str(Path(path).parent)) if path else (PREFIX + secrets.token_hex(4), None)
        wanted = int(str(dict(options)["arena_bytes"]))
        try:
            made, _ = self._keeper.ask("make", name=name, place=place, wanted=wanted, enough=_ENOUGH, share=_SHARE)
        except OSError as error:
            raise HostError(
                f"none of {', '.join((place,) if place else PROGRAM_PLACES)} can take the agent for user {self.user.uid}, each is missing, full, read-only, noexec, "
                "served by a program, or its files can be exchanged by others; "
                "start the container with --tmpfs /tmp:exec, or the program where one of them can be written"
            ) from error
        self.path, arenas, self.arena_bytes = str(made["path"]), str(made["arenas"]), int(made["arena_bytes"])
        self.arenas_name = Path(arenas).name
        self.inode = int(self._keeper.ask("write", name="agent.so", mode=0o555, text="", source=self.library)[0]["inode"])  # as the target sees it
        lines = [*options, ("arenas", arenas), ("arena_bytes", self.arena_bytes)]  # of two the last one counts
        self._keeper.ask("write", name="options", mode=0o444, text="".join(f"{key}={value}\n" for key, value in lines))
        self._keeper.ask("write", name=SCRIPT, mode=0o444, text=script(self.path, arenas))
        self._keeper.ask("publish")  # last: from here on it can be found


def _rights(user: FileSystemUser, process: Pinned | None) -> Rights:
    if process is not None:
        gid, groups = process.credentials.makes_files_as[1], process.credentials.groups
    elif caller := invoking_user():
        gid, groups = caller.pw_gid, tuple(os.getgrouplist(caller.pw_name, caller.pw_gid))
    else:
        gid, groups = os.getegid(), tuple(os.getgroups())
    trusted = {0, os.geteuid(), user.uid, *_outside(), *(_root_of_namespace(process) if process else ())}
    # Where this process has no more rights than the target it can be made to wait by itself alone.
    return Rights(user.uid, gid, groups, tuple(trusted), proven=os.geteuid() == 0)


def _unfit(file: Descriptor, owner: int) -> Unfit | None:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        return Unfit("is not a regular file")
    if status.st_uid != owner:
        return Unfit("belongs to another user")
    return Unfit("is too large") if status.st_size > CHUNKS_START + (1 << 40) else None


def _root_of_namespace(process: Pinned) -> set[int]:
    """The user id, as this process sees it, of root in the target's user namespace."""
    with suppress(OSError, ValueError):
        for line in process.read("uid_map").decode().splitlines():
            inside, outside, _ = map(int, line.split())
            if inside == 0:
                return {outside}
    return set()


def _outside() -> set[int]:
    """The overflow uid: shown for all users that this user namespace does not map."""
    with suppress(OSError, ValueError):
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
            return {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    return set()
