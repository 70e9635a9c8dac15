"""The tracer's side of a keeper: the process that makes and opens files of the agent's for it with one user's rights.

Of what comes back nothing is used that could make this process wait for somebody else's program or give it what that user could not have
had: numbers and texts of a bounded size, within a time, and descriptors of files that the user could open for writing, which the keeper has found
to be in the kernel's memory or on a disk.
"""

import json
import os
import select
import socket
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pytrace_ebpf import self_command
from pytrace_ebpf.record.agent.leftovers import LONGEST, MOST_AT_A_LOOK
from pytrace_ebpf.record.parsing.sandbox import Patience
from pytrace_ebpf.record.process.pinned import Descriptor

_PATIENCE_S = 10.0
_ENDING_S = 2.0
_SOON_S = 0.05


@dataclass(frozen=True)
class Rights:
    """Whose rights a keeper takes on."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    trusted: tuple[int, ...]  # users who may be able to exchange what is made
    proven: bool  # arenas must be where no program can make who reads them wait


class Keeping:
    """A keeper, and what it is asked. Once there was no answer there is none any more: EOFError."""

    def __init__(self, rights: Rights, root: int) -> None:
        """`root`: a descriptor of the directory below which it works. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = json.dumps(asdict(rights)), str(theirs.fileno()), str(root)
        with theirs:
            self._process = self_command.start_worker("keeper", *words, files=[theirs.fileno(), root], packages=False, env={})
        ours.settimeout(_PATIENCE_S)
        self._connection: socket.socket | None = ours
        self._patience: Patience | None = None  # since it was asked what it has not answered
        self._starts = True  # it has not answered yet
        self._early: tuple[dict[str, Any], list[Descriptor]] | None = None  # an answer that nobody has had

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_there(self) -> bool:
        """Whether it answers, as far as is known."""
        return self._connection is not None

    @property
    def owes(self) -> bool:
        """Whether there is an answer yet to come."""
        return self._connection is not None and self._patience is not None

    def ask(self, what: str, source: Descriptor | None = None, **given: Any) -> tuple[dict[str, Any], list[Descriptor]]:
        """What it answers. Raises OSError as the keeper met it, EOFError where there is no keeper, or no answer in time."""
        if self._patience is not None:
            self._early = self._received()  # of ask_soon()
        self._send(what, source, given)
        return self._received()

    def ask_soon(self, what: str, **given: Any) -> tuple[dict[str, Any], list[Descriptor]] | None:
        """The same, but None where the answer takes longer than a moment: then the next call has it. Nobody is held up by a keeper that its user stopped."""
        if self._early is not None:
            early, self._early = self._early, None
            return early
        if self._patience is None:
            self._send(what, None, given)
        if self._connection is not None and not select.select([self._connection], [], [], _SOON_S)[0]:
            if self._patience is not None and self._patience.spent_s > _PATIENCE_S:
                self._give_up()
            return None
        return self._received()

    def _send(self, what: str, source: Descriptor | None, given: dict[str, Any]) -> None:
        if self._connection is None:
            raise EOFError
        try:
            socket.send_fds(self._connection, [json.dumps([what, given]).encode()], [source.fileno()] if source else [])
        except OSError:
            self._give_up()
            raise EOFError from None
        self._patience = Patience(_PATIENCE_S, self.pid, self._starts)

    def _received(self) -> tuple[dict[str, Any], list[Descriptor]]:
        if self._connection is None or self._patience is None:
            raise EOFError
        try:
            self._patience.wait(self._connection, select.POLLIN)
            content, files, _, _ = socket.recv_fds(self._connection, LONGEST, MOST_AT_A_LOOK, socket.MSG_CMSG_CLOEXEC)
            opened = [Descriptor(file) for file in files]
            answer = json.loads(content)
        except (OSError, ValueError):
            self._give_up()
            raise EOFError from None
        self._patience, self._starts = None, False
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return answer, opened

    def end(self) -> None:
        """Have it remove everything and end."""
        with suppress(OSError, EOFError):
            self.ask("remove")
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_S)

    def _give_up(self) -> None:
        """It may hang in a file system, and then not even be killed: nobody waits for it."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        with suppress(OSError):
            self._process.kill()
