"""The host's clock is stepped: the daemon alone sees it so here, by a library that stands between."""

import subprocess
import time
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.daemon.retention import name_of
from tests.bpf.conftest import wait_until
from tests.conftest import PATIENCE_S
from tests.daemons import Daemon
from tests.faults.scene import Scene

SOURCE = Path(__file__).with_name("stepped_clock.c")
YEAR_S = 365 * 86400


def stepped(scene: Scene) -> tuple[Daemon, Path, Path]:
    """A daemon that has two hours of two days ago as well, the file that steps its clock, and the older of these hours."""
    library, file = scene.folder / "stepped.so", scene.folder / "seconds"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=PATIENCE_S)
    old = scene.folder / "profile" / name_of(time.time() - 2 * 86400)
    file.write_text("0")
    daemon = scene.daemon(more='max_age = "3d"\n', within=("env", f"LD_PRELOAD={library}", f"STEPPED_CLOCK={file}"))
    old.mkdir()
    (old / "kept").write_text("")
    scene.sampled(daemon)
    return daemon, file, old


def step(scene: Scene, seconds: int) -> None:
    process = scene.program()
    daemon, file, old = stepped(scene)
    file.write_text(str(seconds))
    scene.sampled(daemon, 3)
    assert old.exists() and daemon.status()["traces_removed"] == 0
    hours = [path for path in daemon.profile.iterdir() if path != old]
    assert len(hours) == 2, "what is written from then on is of the hour that the clock says"
    samples = [pytrace_ebpf.open(hour).profile() for hour in hours]
    assert all(process.pid in set(rows["pid"]) for rows in samples)
    scene.lose(windows=daemon.status()["windows_not_written"], hours=0)
    assert daemon.status()["windows_not_written"] == 0
    (old / "kept").unlink()
    old.rmdir()


def test_forward(scene: Scene) -> None:
    """The clock is stepped a year forward, and hours of two days ago may be three days old"""
    step(scene, YEAR_S)
    log = scene.folder / "log"
    wait_until(lambda: "clock" in log.read_text())
    scene.says(next(line for line in log.read_text().splitlines() if "clock" in line))


def test_back(scene: Scene) -> None:
    """The clock is stepped a year back"""
    step(scene, -YEAR_S)


pytestmark = pytest.mark.skipif(subprocess.run(["which", "cc"], capture_output=True).returncode != 0, reason="no C compiler")
