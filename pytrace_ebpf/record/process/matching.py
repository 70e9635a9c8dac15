"""Python processes whose command line matches a pattern: those that run already, and those that start later.

A process can change its command line at will, so it only selects which processes to inspect; what each one is, is found
out from the pinned process. That takes a while, in particular where a file was made to be slow to read, so new
processes are inspected in the background while the recording goes on, one of each user at a time (lanes.py).
"""

import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.record.cpython.frames import open_frames
from pytrace_ebpf.record.kernel import memory_map
from pytrace_ebpf.record.kernel.file_status import status
from pytrace_ebpf.record.process import stat
from pytrace_ebpf.record.process.lanes import Lanes
from pytrace_ebpf.record.process.pinned import Ended
from pytrace_ebpf.record.process.process_tree import is_ours
from pytrace_ebpf.record.process.shares import Shares, user_of
from pytrace_ebpf.record.process.target import NoRoom, NotPython, Target, inspect

_LOOK_S, _AT_ONCE_S = 1.0, 0.5  # between two looks; after which what a look has found is handed out, and the next one begins
_MOMENT_S = 0.1  # between two looks at what takes long; for which what was found waits for that
_MOST_FOLLOWED = 1000
_LONGEST = 4096  # bytes of a command line that are looked at
_GONE = FileNotFoundError, ProcessLookupError, PermissionError  # or another user's, without root
Key = tuple[int, str, int, int]  # number, start time, and the file that it runs: another program is another process

Is = Target | TargetError | HostError
Found = tuple[int, Is]


class Looking:
    """Looks at every process once, of those that `_fitting` names: those of the user first whose processes have cost least."""

    patient = False  # whether none need be there at the start
    sought = "fits"  # what they all have, in words

    def __init__(self) -> None:
        self.shares = Shares()
        self._judged: set[Key] = set()
        self._young: set[Key] = set()  # Pythons that were not ready when they were looked at
        self._users: dict[Key, int] = {}  # who is charged, of those that fit
        self._keys: dict[int, Key] = {}
        self._followed: dict[int, int] = {}  # users by process
        self._lanes: Lanes[tuple[int, Key], Is | None] = Lanes(self.shares)
        self._looking: Future[list[Found]] | None = None
        self._next_s, self._more = 0.0, False
        self.tell: Callable[[], None] = lambda: None  # called when newcomers() has something new

    def start(self) -> None:
        """Begin to start what looking takes."""
        self._lanes.start()

    def there(self) -> list[Found]:
        """The Pythons that fit now, in the order of their numbers; of one that cannot be traced, why. Where it is `patient`, those that are seen quickly."""
        self._next_s = time.monotonic() + _LOOK_S
        return sorted(self._look(ready=False, within_s=_AT_ONCE_S if self.patient else None), key=lambda found: found[0])

    def newcomers(self) -> list[Found]:
        """Those that came to fit since the last call, once their own code runs. Waits for nothing."""
        if self._looking is None and time.monotonic() >= self._next_s:
            self._looking = Future()
            threading.Thread(target=self._look_beside, args=(self._looking,), name="pytrace-match", daemon=True).start()
        if self._looking is None or not self._looking.done():
            return []
        found, self._looking = self._looking.result(), None
        self._next_s = time.monotonic() + (0 if self._more else _LOOK_S - _MOMENT_S)  # who asks once a second does not come too early each time
        return found

    def user(self, pid: int) -> int:
        """Who is charged for what is done for a process."""
        key = self._keys.get(pid)
        if key is not None and (user := self._users.get(key)) is not None:
            return user
        if pid not in self._followed:  # what a traced process started
            if len(self._followed) >= _MOST_FOLLOWED:
                self._followed.clear()
            self._followed[pid] = user_of(pid)
        return self._followed[pid]

    def take_let_go(self) -> list[int]:
        """Processes that are to be traced no longer, since others have a right to their places."""
        return []

    def close(self) -> None:
        """Stop looking, whatever takes long just now."""
        self._lanes.close()

    def _look_beside(self, looking: "Future[list[Found]]") -> None:
        try:
            looking.set_result(self._look(True, _AT_ONCE_S))
        except BaseException as error:
            looking.set_exception(error)
        if self._more or looking.exception() or looking.result():
            self.tell()

    def _look(self, ready: bool, within_s: float | None) -> list[Found]:
        found = list[Found]()
        try:
            fitting = self._fitting()
        except OSError:  # nothing can be opened just now
            return found
        waiting = self._waiting(fitting)
        end_s = math.inf if within_s is None else time.monotonic() + within_s
        while not self._lanes.is_closed:
            found += self._collect()
            self._begin_looks(waiting, ready)
            now_s = time.monotonic()
            if found and not waiting and within_s is not None:
                end_s = min(end_s, now_s + _MOMENT_S)
            if not self._lanes.users or now_s >= end_s:
                break
            self._lanes.wait(min(end_s - now_s, _MOMENT_S))
        self._more = bool(self._lanes.users) or self.shares.next(waiting) is not None
        keys = set(fitting.values())
        self._judged &= keys
        self._young &= keys
        return found

    def _begin_looks(self, waiting: dict[int, deque[tuple[int, Key]]], ready: bool) -> None:
        """Look at one process more of each user, of who has cost least first."""
        while (user := self.shares.next(waiting.keys() - self._lanes.users)) is not None:
            if not self._lanes.has_room():
                self._lanes.make_room(user)
                return
            pid, key = waiting[user].popleft()
            if not waiting[user]:
                del waiting[user]
            if not is_ours(pid):
                self._lanes.begin((pid, key), user, partial(self._look_at, pid, key, ready))

    def _collect(self) -> list[Found]:
        """What has been looked at, of those that still fit: a look may take longer than its process lives."""
        fitting = [(pid, key, target) for (pid, key), target in self._lanes.take() if target is not None and self._keys.get(pid) == key]
        return [(pid, target) for pid, key, target in fitting if self._takes(pid, key, target)]

    def _waiting(self, fitting: Mapping[int, Key]) -> dict[int, deque[tuple[int, Key]]]:
        """By user those that were not looked at yet."""
        self._keys = dict(fitting)
        self._users = {key: self._users[key] if key in self._users else user_of(pid) for pid, key in fitting.items()}
        waiting, under_way = dict[int, deque[tuple[int, Key]]](), self._lanes.under_way()
        for pid, key in fitting.items():
            if key not in self._judged and (pid, key) not in under_way:
                waiting.setdefault(self._users[key], deque()).append((pid, key))
        return waiting

    def _look_at(self, pid: int, key: Key, ready: bool) -> Is | None:
        """What a process is, once it is a Python and, if asked for, runs its own code; else None."""
        try:
            target: Is = inspect(pid)
            if ready and isinstance(target, Target) and not self._is_ready(target, key):
                return None
        except Ended:
            return None
        except NoRoom:
            self._leave_out(pid, key)
            return None
        except (TargetError, HostError) as error:
            if self._lanes.is_aside((pid, key)) or _became_another(pid, key):
                return None
            target = error
        self._judged.add(key)
        return None if isinstance(target, NotPython) else target

    def _fitting(self) -> dict[int, Key]:
        """The processes that are wanted, if they are Pythons, in the order in which they are to be looked at. Raises OSError where that cannot be seen."""
        raise NotImplementedError

    def _takes(self, pid: int, key: Key, found: Target | TargetError | HostError) -> bool:
        """Whether a Python is handed out; what is not is let go of at once, and with it the files that are open for it."""
        return True

    def _leave_out(self, pid: int, key: Key) -> None:
        """It could not be looked at, and will be once more."""

    def _is_ready(self, target: Target, key: Key) -> bool:
        """Whether it runs code of its own; one that is up and runs none has it from elsewhere, and is taken the second time."""
        if not target.is_initialized():
            return False
        if open_frames(target) or key in self._young:
            return True
        self._young.add(key)
        return False


def _became_another(pid: int, key: Key) -> bool:
    """Whether it has ended, or called exec; what is to be said of it is said of what it is now."""
    try:
        return key_of(pid) != key
    except OSError:
        return False


class Matching(Looking):
    """Those whose command line matches."""

    def __init__(self, pattern: str) -> None:
        """`pattern`: a regular expression, found anywhere in the words of a command line with blanks between them."""
        super().__init__()
        self.sought = f"has a command line that fits {pattern}"
        self._pattern = re.compile(pattern.encode())

    def _fitting(self) -> dict[int, Key]:
        return {pid: key for pid in processes() if (words := command(pid)) and self._pattern.search(words) and (key := key_of(pid))}


def processes() -> list[int]:
    """All that there are, in the order of their numbers."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - every second


def command(pid: int) -> bytes:
    """The beginning of its command line, with blanks between the words; empty of a thread of the kernel, and where it has ended. Raises OSError otherwise."""
    try:
        return memory_map.read(pid, "cmdline", _LONGEST).rstrip(b"\0").replace(b"\0", b" ")
    except _GONE:
        return b""


def key_of(pid: int) -> Key | None:
    """None where it has ended, or is a thread of the kernel. Raises OSError where that cannot be seen."""
    try:
        program = status(f"/proc/{pid}/exe")
        return pid, stat.fields(Path(f"/proc/{pid}/stat").read_bytes())[stat.START], program.st_dev, program.st_ino
    except _GONE:
        return None
