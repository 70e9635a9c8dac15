"""The agent's arena on a full file system: events are lost and counted, and the program is not affected."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent_arena import Arena, Session
from tests.unit.agent_pythons import PYTHONS, attached

# Of Linux before 5.14, as far as the agent can see.
OLD_KERNEL = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int madvise(void *at, size_t length, int advice)
{
    if (advice == 23) { errno = EINVAL; return -1; }
    return syscall(SYS_madvise, at, length, advice);
}
"""
PROGRAM = """
def step(): pass
def steps(number):
    for _ in range(number): step()
    return number
serve()
"""
CHUNK_RECORDS = 1000
ROOM = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("old_kernel", [False, True])
def test_a_program_outlives_a_full_file_system(old_kernel: bool, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if old_kernel:
        library = tmp_path / "old.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=OLD_KERNEL.encode(), check=True)
        monkeypatch.setenv("LD_PRELOAD", str(library))
    with attached(next(iter(PYTHONS)), PROGRAM) as program:
        session = Session(small / "session", chunk_records=CHUNK_RECORDS)
        program.load(session)
        (path,) = session.directory.glob("*.arena")
        descriptor = os.open(path, os.O_RDONLY)
        path.unlink()  # as the tracer does once it has it open
        arena = Path(f"/proc/self/fd/{descriptor}")
        made, before = 2 * CHUNK_RECORDS, len(Arena(arena).events)
        assert program.ask(f"steps({made})") == str(made)
        assert int(Arena(arena).header["dropped"]) == 0
        assert len(Arena(arena).events) >= before + 2 * made
        assert program.ask(f"steps({ROOM // 16})") == str(ROOM // 16)
        assert int(Arena(arena).header["dropped"]) > 0
        os.close(descriptor)
        session.close()
