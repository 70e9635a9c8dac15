"""A daemon for tests, in the foreground, with places of its own."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, wait_until
from tests.conftest import PATIENCE_S

_SELDOM_S = 1.0  # what is asked takes CPU time that the others have not


class Daemon:
    """One in the foreground."""

    def __init__(self, folder: Path, configuration: str, within: Sequence[str] = ()) -> None:
        """Start it, and wait until it has published its status. `within`: words before its own."""
        self.folder, self.file = folder, folder / "daemon.toml"
        self.profile, self.within = folder / "profile", within
        self.configure(configuration)
        self.start()

    def configure(self, text: str) -> None:
        """Write the configuration."""
        places = "".join(
            f'{key} = "{self.folder / name}"\n' for key, name in (("directory", "profile"), ("recordings", "rec"), ("run_directory", "run"))
        )
        self.file.write_text(places + text)

    def start(self) -> None:
        """Start it."""
        self.log = (self.folder / "log").open("a")
        self.process = subprocess.Popen([*self.within, *COMMAND, "daemon", "--config", str(self.file)], stderr=self.log)
        wait_until(lambda: self.process.poll() is not None or self.status().get("pid") == self.process.pid)
        assert self.process.poll() is None, (self.folder / "log").read_text()

    def ask(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """What `daemon WORD` says."""
        return subprocess.run([*COMMAND, "daemon", *words, "--config", str(self.file)], capture_output=True, text=True, timeout=PATIENCE_S)

    def status(self) -> dict[str, Any]:
        """As it is published; nothing where there is none."""
        try:
            return dict(json.loads((self.folder / "run" / "status.json").read_text()))
        except OSError:
            return {}

    def functions(self) -> dict[int, set[str]]:
        """The names of the functions that were sampled, by process. To be asked seldom."""
        time.sleep(_SELDOM_S)
        try:
            trace = pytrace_ebpf.open(self.profile)
        except pytrace_ebpf.errors.TraceError:
            return {}
        table = trace.profile().merge(trace.functions()[["func_id", "name"]], on="func_id")
        return {pid: set(rows["name"]) for pid, rows in table.groupby("pid")}

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()
