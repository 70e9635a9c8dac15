"""What is left to a process of its control groups' memory, of both versions and on every level."""

from pathlib import Path

import pytest

from pytrace_ebpf.record.process.memory_left import memory_left, own_groups

MIB = 1 << 20
HOST = {"MemAvailable": 1 << 33}


def make(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"memory.{name}").write_text(f"{content}\n")


def v1(root: Path) -> str:
    return f"35 31 0:32 / {root} rw - cgroup cgroup rw,memory\n36 31 0:33 / /elsewhere rw - cgroup cgroup rw,cpu\n"


def v2(root: Path, shown: str = "/") -> str:
    return f"35 31 0:32 {shown} {root} rw - cgroup2 cgroup2 rw\n"


def test_the_smallest_of_all_levels_counts_with_files_that_are_only_at_hand(tmp_path: Path) -> None:
    make(tmp_path, limit_in_bytes=1 << 62, usage_in_bytes=0)
    make(
        tmp_path / "pod",
        limit_in_bytes=100 * MIB,
        usage_in_bytes=90 * MIB,
        stat=f"total_inactive_file {3 * MIB}\ntotal_active_file {4 * MIB}\ntotal_mapped_file {MIB}",
    )
    make(tmp_path / "pod" / "one", limit_in_bytes=80 * MIB, usage_in_bytes=60 * MIB, stat="cache 5")
    left = memory_left("9:name=systemd:/x\n4:memory:/pod/one\n0::/", v1(tmp_path), HOST)
    assert (left.size, left.described) == (16 * MIB, f"its control group {tmp_path}/pod")
    assert left.group.endswith("/pod")


@pytest.mark.parametrize("name, size", [("max", 20), ("high", 10)])
def test_version_2_has_two_limits(name: str, size: int, tmp_path: Path) -> None:
    make(tmp_path / "a" / "b", max="max", high="max", current=40 * MIB, stat="inactive_file 0")
    make(tmp_path / "a", **{"max": 60 * MIB, "high": "max", "current": 40 * MIB} | {name: (40 + size) * MIB})
    assert memory_left("0::/a/b", v2(tmp_path), HOST).size == size * MIB


def test_a_part_of_the_groups_may_be_all_that_is_mounted(tmp_path: Path) -> None:
    make(tmp_path / "b", max=50 * MIB, current=20 * MIB)
    assert memory_left("0::/a/b", v2(tmp_path, "/a"), HOST).size == 30 * MIB


def test_what_cannot_be_seen_is_taken_for_small_and_the_machine_counts_too(tmp_path: Path) -> None:
    assert "cannot be seen" in memory_left("0::/../other", v2(tmp_path), HOST).described
    assert "cannot be seen" in memory_left("0::/a/b", v2(tmp_path, "/c"), HOST).described
    assert memory_left("0::/", v2(tmp_path), {"MemAvailable": 5}).size == 5
    assert memory_left("0::/", v2(tmp_path), HOST).described == "this machine"


def test_more_in_use_than_allowed_is_nothing_left(tmp_path: Path) -> None:
    make(tmp_path / "a", max=50 * MIB, current=60 * MIB)
    assert memory_left("0::/a", v2(tmp_path), HOST).size == 0


def test_this_process_has_some() -> None:
    assert memory_left(own_groups()).size > 0
