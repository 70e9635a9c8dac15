"""What a daemon can be asked for, whoever asks and by whatever way."""

import os
import socket
from typing import Any, Protocol


class Service(Protocol):
    """The daemon, to those who speak for others: all of it returns at once, and may be called from any thread."""

    def status(self) -> dict[str, Any]:
        """How it is going, as docs/daemon.md says: plain values."""

    def reload(self) -> None:
        """Read the configuration again, and go on by it; where it is wrong, say so and go on as before."""

    def stop(self) -> None:
        """Write what is left, and end."""


def notify(state: str) -> None:
    """Report to systemd (sd_notify(3)): READY=1, WATCHDOG=1, STOPPING=1; nothing where it does not ask."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        pass  # it may be gone; there is nobody else to say it to
