"""The compiled programs that root keeps, under attack: what another user made there is never loaded."""

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytrace_ebpf.record.kernel import program_cache
from tests.conftest import without_rights
from tests.hostile import USER, as_user, needs_root

pytestmark = needs_root
KEY, PROGRAM = "0" * 64, b"instructions"
PLANTED = hashlib.sha256(b"planted").hexdigest().encode() + b"\nplanted"
# Tries all that could change what root finds under the key: each must fail.
ATTACK = """
import os, sys
folder, key, planted = sys.argv[1:]
def tries():
    yield lambda: open(f"{folder}/{key}", "w")
    yield lambda: open(f"{folder}/new", "w")
    yield lambda: os.unlink(f"{folder}/{key}")
    yield lambda: os.replace(planted, f"{folder}/{key}")
    yield lambda: os.rename(folder, folder + "-away")
    yield lambda: os.symlink(planted, f"{folder}/link")
for attempt in tries():
    try:
        attempt()
    except PermissionError:
        continue
    sys.exit("permitted")
"""


@pytest.fixture
def root(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /, with the directories on the way as a system has them."""
    monkeypatch.setattr(program_cache, "_ROOT", public_path)
    (public_path / "var" / "cache").mkdir(parents=True)
    return public_path


@pytest.fixture
def folder(root: Path) -> Path:
    """The directory, with PROGRAM kept in it."""
    program_cache.keep(KEY, PROGRAM)
    assert program_cache.load(KEY) == PROGRAM
    return root / program_cache._FOLDER


def test_another_user_can_change_nothing(folder: Path, root: Path) -> None:
    theirs = root / "theirs"
    theirs.mkdir()
    os.chown(theirs, USER, USER)
    (theirs / "planted").write_bytes(PLANTED)
    os.chown(theirs / "planted", USER, USER)
    as_user(ATTACK, folder, KEY, theirs / "planted")
    assert program_cache.load(KEY) == PROGRAM


def planted_by_user(file: Path) -> None:
    file.unlink()
    file.write_bytes(PLANTED)
    os.chown(file, USER, USER)


def link_to_users(file: Path) -> None:
    file.unlink()
    planted_by_user_at = file.with_name("theirs")
    planted_by_user_at.write_bytes(PLANTED)
    os.chown(planted_by_user_at, USER, USER)
    file.symlink_to(planted_by_user_at)


def link_to_roots(file: Path) -> None:
    elsewhere = file.with_name("elsewhere")
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def second_name(file: Path) -> None:
    os.link(file, file.with_name("second"))


def for_all_to_write(file: Path) -> None:
    file.chmod(0o666)


def no_file(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def damaged(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"X")


def endless(file: Path) -> None:
    os.truncate(file, 1 << 40)


@pytest.mark.parametrize(
    "harm", [planted_by_user, link_to_users, link_to_roots, second_name, for_all_to_write, no_file, cut_short, emptied, damaged, endless]
)
def test_what_is_not_as_root_left_it_is_not_used_and_is_replaced(folder: Path, harm: Callable[[Path], None]) -> None:
    harm(folder / KEY)
    assert program_cache.load(KEY) is None
    program_cache.keep(KEY, PROGRAM)
    assert program_cache.load(KEY) == PROGRAM


@pytest.mark.parametrize("which", ["var/cache", "var/cache/pytrace-ebpf", program_cache._FOLDER])
@pytest.mark.parametrize("harm", ["belongs to the user", "all may write"])
def test_a_directory_that_others_can_change_is_not_used(folder: Path, root: Path, which: str, harm: str) -> None:
    if harm == "belongs to the user":
        os.chown(root / which, USER, USER)
    else:
        (root / which).chmod(0o777)
    assert program_cache.load(KEY) is None
    program_cache.keep("1" * 64, PROGRAM)
    assert [file.name for file in folder.iterdir()] == [KEY]


def test_a_directory_that_the_user_made_first_is_not_used(root: Path) -> None:
    (root / "var" / "cache").chmod(0o1777)
    as_user(
        "import os, sys; os.makedirs(sys.argv[1], 0o755); open(sys.argv[1] + '/' + sys.argv[2], 'wb').write(bytes.fromhex(sys.argv[3]))",
        root / program_cache._FOLDER, KEY, PLANTED.hex(),
    )  # fmt: skip
    assert program_cache.load(KEY) is None
    program_cache.keep(KEY, PROGRAM)
    assert (root / program_cache._FOLDER / KEY).read_bytes() == PLANTED


def test_a_directory_that_is_the_users_link_is_not_used(root: Path) -> None:
    (root / "var" / "cache").chmod(0o1777)
    theirs = root / "theirs"
    theirs.mkdir()
    os.chown(theirs, USER, USER)
    as_user("import os, sys; os.symlink(sys.argv[1], sys.argv[2])", theirs, root / "var" / "cache" / "pytrace-ebpf")
    program_cache.keep(KEY, PROGRAM)
    assert program_cache.load(KEY) is None
    assert list(theirs.iterdir()) == []


def test_without_root_nothing_is_kept_or_loaded(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pytrace_ebpf.record.kernel import program_cache; program_cache._ROOT = Path(sys.argv[1]);"
        "program_cache.keep('1' * 64, b''); sys.exit(program_cache.load(sys.argv[2]) is not None)"
    )
    root = folder.parents[3]
    subprocess.run(without_rights(USER, "-c", code, str(root), KEY), check=True, cwd="/")
    assert [file.name for file in folder.iterdir()] == [KEY]


def test_only_the_newest_are_kept(folder: Path) -> None:
    for number in range(40):
        program_cache.keep(f"{number:064}", PROGRAM)
        os.utime(folder / f"{number:064}", ns=(number, number))
    assert len(list(folder.iterdir())) <= 32
    assert program_cache.load(f"{39:064}") == PROGRAM
