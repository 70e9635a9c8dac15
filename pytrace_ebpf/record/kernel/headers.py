"""Kernel headers for BCC, made from what lies on this host: unpacked from the kernel itself, or links to a distribution's trees.

The probes use only what is the same in every kernel, so headers of another version than the running one serve.
"""

import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytrace_ebpf.record.kernel.host import PACKED_HEADERS, SYSTEM_HEADERS

_WHERE = ("usr/src/linux-headers-*", "usr/src/kernels/*", "lib/modules/*/build")
_GENERATED, _WRITTEN = Path("include/generated/autoconf.h"), Path("include/linux/kconfig.h")


def unpack(packed: Path = PACKED_HEADERS, to: Path = SYSTEM_HEADERS) -> None:
    """Those that the kernel carries. Raises OSError, tarfile.TarError."""
    new = _emptied(to)
    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # Debian's 3.11 has none yet
        archive.extractall(new)
    _put(new, to)


def trees(root: Path = Path("/")) -> list[Path]:
    """The newest tree under `root` that can be compiled with, in the parts that make it whole; [] for none."""
    found = (tree for pattern in _WHERE for tree in root.glob(pattern) if (tree / _GENERATED).exists())
    return next((parts for tree in sorted(found, key=_version, reverse=True) if (parts := parts_of(tree))), [])


def parts_of(tree: Path) -> list[Path]:
    """The parts that make a tree whole; [] where one is missing."""
    tree = tree.resolve()
    if (tree / _WRITTEN).exists():
        return [tree]
    words = tree.name.split("-")  # Debian packs it in two: 6.1.0-18-amd64 or 6.1.0-18-cloud-amd64, and 6.1.0-18-common
    commons = (tree.with_name("-".join([*words[:many], "common"])) for many in range(len(words) - 1, 0, -1))
    return next(([common, tree] for common in commons if (common / _WRITTEN).exists()), [])


def link(parts: Sequence[Path], to: Path = SYSTEM_HEADERS) -> None:
    """Make `to` a tree of links to the files of `parts`, of which a later one's come first. Raises OSError."""
    new = _emptied(to)
    for part in parts:
        for name, file in _files(part.resolve()):
            link = new / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    _put(new, to)


def _files(part: Path) -> Iterator[tuple[Path, Path]]:
    """Every file by its name in the tree; of a link to a folder, as Ubuntu's trees have, the link."""
    for folder, below, files in os.walk(part):
        links = [name for name in below if Path(folder, name).is_symlink()]
        for name in (*files, *links):
            file = Path(folder, name)
            yield file.relative_to(part), file


def _version(tree: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", f"{tree.parent.name} {tree.name}")))


def _emptied(to: Path) -> Path:
    new = to.with_name(to.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o755, parents=True)
    return new


def _put(new: Path, to: Path) -> None:
    if to.is_symlink():
        to.unlink()
    elif to.exists():
        shutil.rmtree(to)
    new.rename(to)
