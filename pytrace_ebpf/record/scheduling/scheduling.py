"""What a source of scheduling is to the recording: a recorder that says which one it is and what it does not know."""

from typing import Any

from pytrace_ebpf.record.recorder import Recorder


class Scheduling(Recorder):
    """Reports when the threads of the recorded processes ran and waited."""

    name: str | None  # None: there are no rows
    why: str  # one sentence: why this one, and what it does not know

    def metadata(self) -> dict[str, Any]:
        """The manifest's `scheduling`."""
        return {"scheduling": {"source": self.name, "why": self.why}}
