"""A recording of this very process, made by a recorder that is started beside it: `with pytrace_ebpf.recording(DIR) as own: ...`."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pytrace_ebpf import self_command
from pytrace_ebpf.errors import HostError

if TYPE_CHECKING:
    from pytrace_ebpf.trace.reader import Trace

_WITHIN_S = 60.0  # the recorder must have come in
_TRACEBACK = "Traceback (most recent call last):"
_BEGUN = (b"tracing", b"joined ")  # how the line begins that says so; before it may stand what it waited for
_MOST_SAID = 1 << 16
_SAMPLED = ("--rootless", "--sample", "999")  # without privileges
_SOURCES = ("--so", "--sa", "--ro")  # --source, --sample, --rootless: where its calls come from, or that none are recorded
_AGENT = ("--source", "agent")  # nothing has to be kept out of a process that asks for it, and it costs a tenth
_DAEMON = "--daemon"
_BY_DAEMON = ("request", "--duration", "60s")  # what a daemon allows unless its configuration says otherwise; a later --duration counts


class SelfRecording:
    """All threads of this process, from begin() to end(); also a context manager.

    Root records every call, by the agent, others samples of the stacks (`attach --rootless --sample`), unless `options` say otherwise: `--daemon` has the daemon
    record every call (`request`), without root. The recorder is another process: it ends when this one does, however that ends, and then its trace is whole.
    """

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        """`directory`: of the trace, new or empty; `options`: further words of `pytrace-ebpf attach`, or `--daemon` and those of `request`."""
        self.directory = directory
        self.start_ns = self.end_ns = 0
        self._by = _BY_DAEMON if _DAEMON in options else ("attach",)
        asked = [word for word in options if word != _DAEMON] if options or os.geteuid() == 0 else list(_SAMPLED)
        self._options = asked if any(word.startswith(_SOURCES) for word in asked) else [*asked, *_AGENT]
        self._recorder: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the recorder, and return when it records. Raises HostError with what it says where it does not."""
        # A file without a name: beside the trace others might have put a link there.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - end() closes it
        command = self_command.command(*self._by, "--pid", str(os.getpid()), "-o", str(self.directory), *self._options)
        recorder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True)
        until = time.monotonic() + _WITHIN_S
        while not any(line.startswith(_BEGUN) for line in os.pread(self._log.fileno(), _MOST_SAID, 0).splitlines()):
            if recorder.poll() is not None or time.monotonic() > until:
                recorder.kill()
                recorder.wait()
                raise HostError(self._last_words() or "the recorder did not begin")
            time.sleep(0.01)
        self._recorder, self.start_ns = recorder, time.monotonic_ns()

    def end(self) -> None:
        """Have the trace finished; nothing where it is. Raises HostError where the recorder failed."""
        if self._recorder is None:
            return
        recorder, self._recorder, self.end_ns = self._recorder, None, time.monotonic_ns()
        recorder.send_signal(signal.SIGINT)
        failed, said = recorder.wait(), self._last_words()
        if failed:
            raise HostError(said or "the recording failed")

    @property
    def trace(self) -> "Trace":
        """What was recorded of this process between begin() and end()."""
        import pytrace_ebpf

        return pytrace_ebpf.open(self.directory).window(self.start_ns, self.end_ns or None, os.getpid())

    def __enter__(self) -> "SelfRecording":
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.end()

    def _last_words(self) -> str:
        """Of the recorder, which has ended: its last line, but all from the traceback on where it failed by a fault of its own."""
        with self._log:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()
        return said[found:] if (found := said.find(_TRACEBACK)) >= 0 else said.rpartition("\n")[2].removeprefix("pytrace-ebpf: ")
