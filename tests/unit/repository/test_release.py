"""What `make release` makes of the change log and the version, what it refuses, and what it takes for a whole source archive."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scripts import release
from tests.conftest import REPOSITORY

CHANGES = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n* One.\n\n## [0.1.0] - 2026-01-02\n\n* First.\n"


def test_what_is_unreleased_gets_the_version_and_the_day() -> None:
    expected = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-03-04\n\n### Added\n\n* One.\n\n## [0.1.0] - 2026-01-02\n\n* First.\n"
    assert release.headed(CHANGES, "0.2.0", "2026-03-04") == expected


@pytest.mark.parametrize(
    ("changes", "version", "why"),
    [
        (CHANGES, "0.2", "no version such as"),
        (CHANGES, "v0.2.0", "no version such as"),
        (CHANGES, "0.1.0", "has a version 0.1.0 already"),
        (CHANGES.replace("### Added\n\n* One.\n", ""), "0.2.0", "no change under Unreleased"),
        ("# Changelog\n", "0.2.0", "has no line"),
    ],
)
def test_what_is_no_release_is_refused(changes: str, version: str, why: str) -> None:
    with pytest.raises(release.RefusedError, match=why):
        release.headed(changes, version, "2026-03-04")


def test_the_packages_version_goes_up_only() -> None:
    assert release.numbered('"""Doc."""\n__version__ = "0.9.0"\n', "0.10.0") == '"""Doc."""\n__version__ = "0.10.0"\n'
    with pytest.raises(release.RefusedError, match="is older than"):
        release.numbered('__version__ = "0.10.0"\n', "0.9.0")


def test_the_change_log_of_this_tree_can_be_released() -> None:
    assert "\n## [9.0.0] - 2026-03-04\n" in release.headed((REPOSITORY / "CHANGELOG.md").read_text(), "9.0.0", "2026-03-04")


@pytest.mark.parametrize(("left_out", "added"), [("pytrace_ebpf/errors.py", None), (None, "probes/secret.txt")])
def test_a_source_archive_has_what_git_has(tmp_path: Path, left_out: str | None, added: str | None) -> None:
    names = subprocess.run(["git", "ls-files", "pytrace_ebpf", "probes"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.split()

    def packed(name: str, files: list[str]) -> Path:
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            for file in files:
                archive.addfile(tarfile.TarInfo(f"pytrace_ebpf-1/{file}"))
        return tmp_path / name

    release.check_source(packed("whole.tar.gz", names))
    with pytest.raises(release.RefusedError, match=left_out or added):
        release.check_source(packed("other.tar.gz", [name for name in [*names, *([added] if added else [])] if name != left_out]))


def test_without_a_version_it_says_how() -> None:
    done = subprocess.run([sys.executable, REPOSITORY / "scripts/release.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "release: say which version: make release VERSION=1.2.3\n")
