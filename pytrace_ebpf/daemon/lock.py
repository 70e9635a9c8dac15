"""One daemon at a time: its run directory has a lock, which the kernel lets go of however it ends, and what it says of itself."""

import fcntl
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytrace_ebpf.errors import HostError

_LOCK, _STATUS = "daemon.lock", "status.json"
_AT = "said_at_s"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Lock:
    """The lock of a run directory, held until close()."""

    def __init__(self, directory: Path) -> None:
        """Raises HostError where there is a daemon already, or the directory cannot be ours alone."""
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            found = os.fstat(self._directory)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise HostError(f"{directory} belongs to somebody else, or others may write to it: name another run_directory")
            self._file = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)
        except OSError as error:
            raise HostError(f"the daemon cannot have its run directory {directory} ({error.strerror})") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HostError(f"a daemon runs already, as process {_pid(self._file)}: pytrace-ebpf daemon status says more") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        self._forget()  # what one that was killed said

    def publish(self, status: dict[str, Any]) -> None:
        """Let status() say this from now on."""
        fresh = f"{_STATUS}.new"
        with suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=self._directory)
        with os.fdopen(os.open(fresh, _NEW, 0o600, dir_fd=self._directory), "w") as file:
            json.dump(status | {_AT: _now_s()}, file)
        os.rename(fresh, _STATUS, src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def close(self) -> None:
        """Let another one run."""
        self._forget()
        os.close(self._file)
        os.close(self._directory)

    def _forget(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(_STATUS, dir_fd=self._directory)


class Running:
    """The daemon that holds the lock of a run directory, seen from another process."""

    def __init__(self, directory: Path) -> None:
        """Raises HostError where there is none, or it is another user's."""
        self._directory = directory
        self._descriptor = -1
        try:
            file = os.open(directory / _LOCK, os.O_RDONLY | os.O_NOFOLLOW)
        except PermissionError:
            raise HostError("the daemon is root's: say this as root") from None
        except OSError:
            raise _none(self._directory) from None
        try:
            if _is_free(file):
                raise _none(self._directory)
            self.pid = _pid(file)
            self._descriptor = os.pidfd_open(self.pid)
            if _is_free(file) or _pid(file) != self.pid:  # whose number this was may have ended just now
                raise _none(self._directory)
        except OSError:
            raise _none(self._directory) from None
        finally:
            os.close(file)

    def status(self) -> dict[str, Any]:
        """What it said last; and silent_s, how long ago that was. Raises HostError."""
        try:
            said = json.loads((self._directory / _STATUS).read_text())
        except (OSError, ValueError):
            raise HostError("the daemon has only just started, and says nothing of itself yet") from None
        now_s = _now_s()
        return dict(said) | {"silent_s": round(now_s - float(said.get(_AT, now_s)), 3)}  # one of an older version says no time

    def reload(self) -> None:
        """Let it read its configuration again. Raises HostError."""
        self._send(signal.SIGHUP)

    def stop(self) -> None:
        """Let it end. Raises HostError."""
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except PermissionError:
            raise HostError("the daemon is root's: say this as root") from None
        except OSError:
            raise _none(self._directory) from None

    @property
    def descriptor(self) -> int:
        """Of the process: readable once it has ended."""
        return self._descriptor

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # of all processes of a host, and nobody steps it


def _none(directory: Path) -> HostError:
    start = "systemctl start pytrace-ebpf starts it, or pytrace-ebpf daemon in the foreground"
    return HostError(f"no daemon runs with {directory} as its run directory (--config names the file of another one); {start}")


def _is_free(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def _pid(file: int) -> int:
    try:
        return int(os.pread(file, 32, 0))
    except ValueError:
        raise OSError(3, "no process") from None
