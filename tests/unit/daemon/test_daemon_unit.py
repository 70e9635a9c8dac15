"""The daemon's systemd unit: what it lets the daemon do, and that systemd reads it."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytrace_ebpf.cli.daemon import _lines
from pytrace_ebpf.record.rights import capabilities

UNIT = Path(__file__).parents[3] / "scripts" / "daemon" / "pytrace-ebpf.service"


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


def test_it_has_the_capabilities_that_the_daemon_keeps_and_no_others() -> None:
    assert set(service()["CapabilityBoundingSet"].split()) == {f"CAP_{name}" for name in capabilities.LOADING}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_reads_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pytrace-ebpf").symlink_to("/bin/true")
    fresh = tmp_path / UNIT.name
    fresh.write_text(UNIT.read_text().replace("@PREFIX@", str(tmp_path)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", fresh], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_status_says_what_a_loss_means_and_where_recordings_go() -> None:
    status = {
        "pid": 1, "uptime_s": 3600.0, "silent_s": 2.0, "sampled": 2, "ignored": 3, "host_percent": 0.3, "started_host_percent": 1.25,
        "rss_bytes": 10**8, "directory": "/d", "bytes": 10**6, "windows": 6,
        "samples": 99, "lost": 7, "lost_by_class": {"sample_native": 5, "unheard_of": 2}, "windows_not_written": 0, "too_many": 4, "most": 2, "not_sampled": [],
        "recordings": {
            "going": {"12": "/r/\x1b[31m12", "13": "/r/13"}, "traces": {"12": [], "13": ["/r/13", "/r/13-2"]}, "failed": 0, "refused": 2, "bytes": 3 * 10**6,
            "removed": 1,
        },
    }  # fmt: skip
    lines = _lines(status)
    assert "waiting for clang, for 3 s" in _lines(status | {"waiting": ["waiting for clang, for 3 s"]})
    assert "0.30 % of the host's CPU, and 1.25 % what it started that is over (recordings, helpers); 100 MB of memory" in lines
    assert "lost: 5 samples with unknown native frames: the Python frames are known" in lines and "lost: 2 unheard_of" in lines
    assert [line for line in lines if line.startswith("recording process 12 into /r/") and line.endswith("12, no trace yet")]
    assert "recording process 13 into /r/13: 2 traces so far, the last in /r/13-2" in lines and "\x1b" not in "".join(lines)
    assert "recordings take 3.0 MB, 1 were removed (max_bytes, max_age)" in lines and [
        line for line in lines if line.startswith("2 processes not recorded")
    ]
    assert lines[0].startswith("process 1, for 60min: 2 processes sampled")
    assert _lines(status | {"silent_s": 300.0})[0].startswith("process 1 has said nothing for 300s: it is stopped")
    assert any("4 processes are not sampled because there are so many: 2 at most" in line for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(("dropped", "kept"), [((), ()), ((21,), (38, 39))], ids=["SYS_ADMIN", "BPF and PERFMON"])
def test_it_may_load_programs_also_where_a_container_gives_it_no_more_than_that(dropped: tuple[int, ...], kept: tuple[int, ...]) -> None:
    program = f"""
from pathlib import Path
from pytrace_ebpf.record.libc import libc
from pytrace_ebpf.record.rights import capabilities
for number in {dropped}:
    libc.prctl(24, number, 0, 0, 0)
capabilities.keep(capabilities.LOADING)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd")))
"""
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=UNIT.parents[2]).stdout
    others = capabilities.bits(capabilities.LOADING) & ~sum(1 << number for number in dropped)
    assert int(there, 16) == others | sum(1 << number for number in kept)
