"""The agent's directory: it goes with the tracer, however that ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from pytrace_ebpf.record.agent_directory import AgentDirectory, sweep
from tests.unit.agent_pythons import built

pytestmark = built

HOUR_S = 3600
OPTIONS = [("arena_bytes", 1 << 20)]
MAKES_ONE = f"""
from pytrace_ebpf.record.agent_directory import AgentDirectory
directory = AgentDirectory({OPTIONS})
print(directory.path, directory.arenas_name, flush=True)
input()
"""


def places(path: str, arenas_name: str) -> list[Path]:
    found = [Path(path), *(place for folder in ("/dev/shm", "/tmp", "/var/tmp", "/run") if (place := Path(folder) / arenas_name).exists())]
    for place in found:  # as if it were old
        os.utime(place, (place.stat().st_atime, place.stat().st_mtime - HOUR_S))
    return found


def test_what_a_killed_tracer_left_goes_with_the_next_one_and_what_is_in_use_stays() -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKES_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    left = places(*maker.stdout.readline().split())
    own = AgentDirectory(OPTIONS)
    used = places(own.path, own.arenas_name)
    sweep()
    assert len(left) == 2 and all(place.exists() for place in left + used)  # both tracers live
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    sweep()
    assert not any(place.exists() for place in left) and all(place.exists() for place in used)
    own.remove()
    assert not any(place.exists() for place in used)
