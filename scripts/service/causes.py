"""The planted causes, and what was expected of an answer before there was one: a table."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
_HOLDS_ROW = """DO $$ BEGIN LOOP UPDATE stock SET left_over = left_over - 1 WHERE id = 1; PERFORM pg_sleep(0.3); COMMIT; END LOOP; END $$"""


@dataclass(frozen=True)
class Cause:
    """One.

    load: how many clients ask for which path. cause, what: words (regular expressions) that the first finding has; what names the peer, statement, pool, file
    or who else. by_wait, by_request: words of these reports. plant: what is done from outside; of the environment of the service and its pids.
    """

    name: str
    load: Mapping[str, int]
    cause: str
    what: str
    by_wait: str
    by_request: str
    program: str = "shop"
    plant: Callable[[Mapping[str, str], list[int]], contextlib.AbstractContextManager[None]] = field(default=lambda *_: contextlib.nullcontext())

    @property
    def lines(self) -> Mapping[str, list[str]]:
        """FILE:LINE of each "line" that names it, and of the first of each "function" that has such a line."""
        file, lines, functions, first = f"{self.program}.py", list[str](), list[str](), 0
        words = (PROGRAMS / file).read_text().splitlines()
        for number, text in enumerate(words, 1):
            if text.startswith(("def ", "async def ")):
                first = number - words[number - 2].startswith("@")
            if text.endswith(f"# cause: {self.name}"):
                lines.append(f"{file}:{number}")
                functions.append(f"{file}:{first}")
        return {"line": lines, "function": functions}


@contextlib.contextmanager
def holds_row(environment: Mapping[str, str], _: list[int]) -> Iterator[None]:
    """A migration that forgets to commit for a while."""
    with subprocess.Popen(["psql", "-q", environment["SHOP_DATABASE"], "-c", _HOLDS_ROW], stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def control_group(controller: str, pids: list[int], settings: Mapping[str, str]) -> Iterator[None]:
    """Processes in a control group of their own; settings by file, those of version 1 and of version 2."""
    root = Path("/sys/fs/cgroup")
    mounted = root / controller
    parent = mounted if (mounted / "cgroup.procs").exists() else root
    group = parent / f"pytrace-service-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in settings.items():
            if (group / name).exists():
                (group / name).write_text(value)
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(OSError):
                (parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@contextlib.contextmanager
def little_quota(_: Mapping[str, str], pids: list[int]) -> Iterator[None]:
    settings = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "15000", "cpu.max": "15000 100000"}
    with control_group("cpu", pids, settings):
        yield


@contextlib.contextmanager
def slow_disk(environment: Mapping[str, str], pids: list[int]) -> Iterator[None]:
    device = Path(environment["SHOP_FOLDER"]).stat().st_dev
    disk = f"{os.major(device)}:{os.minor(device)}"
    with control_group("blkio", pids, {"blkio.throttle.read_bps_device": f"{disk} 1000000", "io.max": f"{disk} rbps=1000000"}):
        yield


CAUSES = (
    Cause("row-lock", {"/reserve": 4}, r"row lock|for a lock", r"postgres .*`UPDATE stock", r"postgres", r"UPDATE stock", plant=holds_row),
    Cause("pool", {"/statement": 9, "/report": 3}, r"pool of 2", r"had by `report`", r"[Pp]ool", r"[Pp]ool"),
    Cause("peer", {"/pay": 6}, r"waits", r"127\.0\.0\.1.*POST http\S*/charge", r"127\.0\.0\.1:\d+", r"POST http\S*/charge"),
    Cause("fsync", {"/journal": 8}, r"lock", r"fsync|/journal", r"fsync|/journal", r"lock|journal"),
    Cause("regex", {"/search": 2}, r"event loop", r"`is_name`", r"is_name", r"is_name", program="suggest"),
    Cause("quota", {"/quote": 2}, r"CPU quota", r"control group", r"quota|throttled", r"quota|throttled", plant=little_quota),
    Cause("refused", {"/notify": 6}, r"refused|could not connect", r"127\.0\.0\.1:\d+|/hook", r"sleep", r"/hook|sleep"),
    Cause("tls", {"/charge": 6}, r"TLS handshake", r"127\.0\.0\.1:\d+", r"127\.0\.0\.1:\d+", r"POST https\S*/fast"),
    Cause("many", {"/listing": 4}, r"20 times in each|many small", r"postgres .*`SELECT lines", r"postgres", r"SELECT lines"),
    Cause("sleep", {"/slot": 6}, r"sleeps", r"`slot`", r"sleep", r"sleep|slot"),
    Cause("log", {"/login": 8}, r"lock", r"pipe|/log\b", r"Handler\.acquire", r"Handler\.acquire|pipe|lock"),
    Cause("subprocess", {"/thumbnail": 6}, r"child process", r"\bsleep\b", r"\bsleep\b", r"\bsleep\b"),
    Cause("disk", {"/archive": 6}, r"disk|file|/archive", r"/archive", r"/archive", r"/archive", plant=slow_disk),
    Cause("queue", {"/enqueue": 6}, r"Queue\.put", r"`ship`", r"Queue\.put", r"Queue\.put"),
)  # fmt: skip
USUAL = {"shop": {"/item": 2}, "suggest": {"/suggest": 2}}
