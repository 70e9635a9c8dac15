"""A process that measures a round of its own work whenever it is asked to."""

import subprocess
from pathlib import Path

IN_ROOT = Path(__file__).parents[2] / "in-root.sh"


class Measuring:
    """A running program that answers each line on its stdin with the nanoseconds that a call, or a switch, of one round took."""

    def __init__(self, command: list[str], root: str | None = None, *shown: Path) -> None:
        """Start it, in a root filesystem where `shown` are to be seen, and have it play a round that does not count."""
        if root:
            command = [str(IN_ROOT), *(word for folder in shown for word in ("--at", str(folder))), root, *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.round()

    @property
    def pid(self) -> int:
        """Its process id, on this host."""
        return self.process.pid

    def round(self) -> float:
        """Nanoseconds, of the next round."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """It ends with its input."""
        self.process.communicate()


def in_turn(children: dict[str, Measuring], rounds: int) -> dict[str, list[float]]:
    """What the rounds of each took, one of each after the other."""
    taken: dict[str, list[float]] = {mode: [] for mode in children}
    for _ in range(rounds):
        for mode, child in children.items():
            taken[mode].append(child.round())
    return taken
