"""The names of asyncio's tasks, as their get_name() gives them, by what samples refer to them by."""

import numpy as np

from pytrace_ebpf.record.kernel.bpf import Programs

_MOST_NAMES = 1 << 16  # kept; as many again are known to the kernel half at most, which then reports them once more
_CUT = "..."
_CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # of characters by their width


class TaskNames:
    """What the kernel half has reported of tasks."""

    def __init__(self, programs: Programs) -> None:
        self._ring, self._named = programs.ring("tasks", programs.dtype("task_event")), programs.map("named")
        self._names: dict[int, str] = {}

    def drain(self) -> None:
        """Take in the names that are new."""
        for task, length, width, name in self._ring.drain(lambda events: events[["task", "length", "width", "name"]].tolist()):
            self._names[task] = name_of(length, width, bytes(name))

    def of(self, tasks: np.ndarray) -> np.ndarray:
        """The names of sample_event.task, shape (n,), as objects; None for no task."""
        numbers, which = np.unique(tasks, return_inverse=True)
        return np.array([self._names.get(number) for number in numbers.tolist()], object)[which]

    def let_go(self, waiting: np.ndarray) -> None:
        """Forget names where they are many, but those of the tasks `waiting` (sample_event.task)."""
        if len(self._names) > _MOST_NAMES:
            needed = set(waiting.tolist())
            self._names = {task: name for task, name in self._names.items() if task in needed}
            for task in [task for task, _ in self._named.items()]:
                self._named.delete(task)


def name_of(length: int, width: int, raw: bytes) -> str:
    """The name of a struct task_event, of which only the beginning may have fitted. Of a lone surrogate its escape; of what is no character anything."""
    if width not in _CODECS:
        return f"Task-{length}"
    held = min(length, len(raw) // width)
    try:
        text = raw[: held * width].decode(_CODECS[width], "surrogatepass")
    except UnicodeDecodeError:
        text = raw[: held * width].decode(_CODECS[width], "replace")
    return text.encode("utf-8", "backslashreplace").decode() + (_CUT if held < length else "")
