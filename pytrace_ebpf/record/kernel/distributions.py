"""What tracing needs of each Linux distribution, and the command lines that install it: values only, nothing is run."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from pytrace_ebpf import processors

Command = tuple[str, ...]


@dataclass(frozen=True)
class Distribution:
    """A package manager's words, and what it calls bcc's Python bindings and the kernel's headers."""

    name: str
    refresh: Command  # has it look for new lists of packages; () where installing does
    install: Command
    bcc: str
    headers: Command  # of these the first that there is; {release} and {flavour} are the running kernel's
    flavours: Command = ()  # of its kernels, as the last word of a release

    def headers_of(self, release: str) -> Command:
        """The names of packages to try, best first, for the kernel of this release (`uname -r`)."""
        flavour = release.rpartition("-")[2]
        fits = (name for name in self.headers if "{flavour}" not in name or flavour in self.flavours)
        return tuple(name.format(release=release, flavour=flavour) for name in fits)


_APT_UPDATE = ("apt-get", "-q", "update")
_APT = ("apt-get", "-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "install")
_DISTRIBUTIONS = {
    "debian": Distribution("Debian", _APT_UPDATE, _APT, "python3-bpfcc", ("linux-headers-{release}", f"linux-headers-{processors.here().debian}")),
    "ubuntu": Distribution("Ubuntu", _APT_UPDATE, _APT, "python3-bpfcc", ("linux-headers-{release}", "linux-headers-generic")),
    "fedora": Distribution("Fedora", (), ("dnf", "-y", "install"), "python3-bcc", ("kernel-devel-{release}", "kernel-devel")),
    # Never -Sy: new lists without an upgrade of all are what Arch warns of.
    "arch": Distribution(
        "Arch Linux", (), ("pacman", "-S", "--noconfirm", "--needed"), "python-bcc",
        ("linux-{flavour}-headers", "linux-headers"), ("lts", "zen", "hardened"),
    ),
    "alpine": Distribution(
        "Alpine", (), ("apk", "--update-cache", "add"), "py3-bcc", ("linux-{flavour}-dev", "linux-lts-dev"), ("lts", "virt"),
    ),
}  # fmt: skip


def distribution(said: Mapping[str, str] | None = None) -> Distribution | None:
    """That of this host, by ID and else ID_LIKE of os-release (`said`, for tests); None for one that is not known."""
    if said is None:
        try:
            said = platform.freedesktop_os_release()
        except OSError:
            return None
    likes = (said.get("ID", ""), *said.get("ID_LIKE", "").split())
    return next((_DISTRIBUTIONS[name] for name in likes if name in _DISTRIBUTIONS), None)
