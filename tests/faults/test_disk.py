"""The place that the daemon writes to is full, cannot be written, or goes away."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import COMMAND, wait_until
from tests.conftest import PATIENCE_S
from tests.daemons import Daemon
from tests.faults.scene import POLICY, WINDOW_NS, Scene, has_calls


def disk(scene: Scene) -> Path:
    """A disk of its own where a daemon's sums go."""
    place = scene.folder / "profile"
    place.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=16m", "tmpfs", place], check=True)
    scene.undo.append(lambda: subprocess.run(["umount", "-l", place], check=False, stderr=subprocess.DEVNULL))
    return place


def fill(place: Path, left: int) -> None:
    """Let others have all of a disk but so many bytes."""
    with (place / "others").open("wb") as others:
        os.posix_fallocate(others.fileno(), 0, os.statvfs(place).f_bavail * os.statvfs(place).f_frsize - left)


def refused_then_goes_on(scene: Scene, daemon: Daemon) -> None:
    """Wait until windows are refused, and say why."""
    wait_until(lambda: daemon.status()["windows_not_written"] >= 2)
    scene.says(next(line for line in daemon.ask("status").stdout.splitlines() if "could not be written" in line))
    scene.says(scene.said.partition(", and it goes on: ")[2])


def all_counted(scene: Scene, process: "subprocess.Popen[bytes]", daemon: Daemon) -> None:
    """What is missing is what was counted as not written."""
    scene.sampled(daemon)
    missing_s = scene.gap_s(process, daemon)
    assert daemon.status()["why_not_written"] is None
    scene.lose(windows=daemon.status()["windows_not_written"])
    assert missing_s >= daemon.status()["windows_not_written"] * WINDOW_NS / 1e9


@pytest.mark.cheap
def test_full(scene: Scene) -> None:
    """The daemon's disk is full for a while"""
    place, process = disk(scene), scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    fill(place, os.statvfs(place).f_bavail * os.statvfs(place).f_frsize // 50)
    refused_then_goes_on(scene, daemon)
    (place / "others").unlink()
    all_counted(scene, process, daemon)


def test_immutable(scene: Scene) -> None:
    """Nothing in the daemon's directory can be written for a while, as on a disk that became read-only"""
    process = scene.program()
    daemon = scene.daemon()
    scene.undo.append(lambda: subprocess.run(["chattr", "-R", "-i", daemon.profile], check=False))
    scene.sampled(daemon)
    subprocess.run(["chattr", "-R", "+i", daemon.profile], check=True)
    refused_then_goes_on(scene, daemon)
    subprocess.run(["chattr", "-R", "-i", daemon.profile], check=True)
    all_counted(scene, process, daemon)


def test_removed(scene: Scene) -> None:
    """The daemon's directory is removed while it samples"""
    scene.program()
    daemon = scene.daemon()
    scene.sampled(daemon)
    written = daemon.status()["windows"]
    while daemon.profile.exists():  # something may be written meanwhile
        shutil.rmtree(daemon.profile, ignore_errors=True)
    refused_then_goes_on(scene, daemon)
    assert not daemon.profile.exists(), "whoever removed it wanted it gone"
    scene.lose(windows=written + daemon.status()["windows_not_written"])


def test_cannot_be_written(scene: Scene) -> None:
    """The daemon is started where its directory cannot be written"""
    place = disk(scene)
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    scene.program()
    (scene.folder / "daemon.toml").write_text(
        f'directory = "{place / "profile"}"\nrun_directory = "{scene.folder / "run"}"\n{POLICY.format(tag=scene.tag, action="sample")}'
    )
    started = subprocess.run([*COMMAND, "daemon", "--config", scene.folder / "daemon.toml"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert started.returncode == 4
    scene.says(started.stderr)


def ends_early(scene: Scene, tracer: "subprocess.Popen[str]", code: int, why: str) -> None:
    """One sentence says why it ended, and what was recorded until then opens."""
    said = tracer.communicate(timeout=PATIENCE_S)[1]
    assert tracer.returncode == code, said
    scene.says(next((line for line in said.splitlines() if re.search(why, line)), said))
    assert len(pytrace_ebpf.open(scene.folder / "profile" / "trace").calls())


def test_an_attach_has_no_room(scene: Scene) -> None:
    """The disk that `attach` writes to is nearly full"""
    place, process = disk(scene), scene.program()
    fill(place, 1 << 20)
    tracer = scene.attach(process.pid, "--source", "usdt", "--duration", "60", name="profile/trace")
    ends_early(scene, tracer, 0, "MB are left on the trace's disk")


def test_others_take_the_room_of_an_attach(scene: Scene) -> None:
    """The disk that `attach` writes to becomes nearly full while it records"""
    place, process = disk(scene), scene.program()
    tracer = scene.attach(process.pid, "--source", "usdt", "--duration", "60", name="profile/trace")
    wait_until(lambda: has_calls(scene.folder / "profile" / "trace"))
    fill(place, 1 << 19)
    ends_early(scene, tracer, 0, "MB are left on the trace's disk")


def test_an_attach_that_may_write_more_than_there_is_room_for(scene: Scene) -> None:
    """The disk that `attach` writes to becomes full while it records, and --max-size allows more"""
    place, process = disk(scene), scene.program()
    tracer = scene.attach(process.pid, "--source", "usdt", "--duration", "60", "--max-size", "1G", name="profile/trace")
    wait_until(lambda: has_calls(scene.folder / "profile" / "trace"))
    fill(place, 0)
    ends_early(scene, tracer, 4, "No space left on device")
