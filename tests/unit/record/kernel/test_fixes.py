"""doctor --fix: what it would run on which distribution, that it asks, and that it runs nothing that others than root could have put there."""

import argparse
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytrace_ebpf.cli import doctor as command
from pytrace_ebpf.errors import HostError, UsageError
from pytrace_ebpf.record.kernel import distributions, fixes, headers, host
from pytrace_ebpf.record.kernel.distributions import Distribution, distribution
from pytrace_ebpf.record.kernel.host import FIX, Finding

BCC = Finding("BCC", "problem", "it is missing", FIX)
HEADERS = Finding("headers", "problem", "they are missing", FIX)
TRACEFS = Finding("tracefs", "warning", "it is not mounted", FIX)
UNMENDABLE = Finding("BTF", "problem", "there is none", "boot another kernel")
MOUNT = "mount -t tracefs tracefs /sys/kernel/tracing"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], None]:
    """A host of that distribution and kernel, without any headers."""

    def is_now(name: str, release: str) -> None:
        monkeypatch.setattr(fixes, "PACKED_HEADERS", tmp_path / "none")
        monkeypatch.setattr(headers, "trees", lambda: [])
        monkeypatch.setattr(fixes, "distribution", lambda: distribution({"ID": name}))
        monkeypatch.setattr(fixes.platform, "release", lambda: release)

    return is_now


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"ID": "debian"}, "Debian"),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "Ubuntu"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "Ubuntu"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "Fedora"),
        ({"ID": "manjaro", "ID_LIKE": "arch"}, "Arch Linux"),
        ({"ID": "alpine"}, "Alpine"),
        ({"ID": "void"}, None),
        ({}, None),
    ],
)
def test_a_distribution_is_known_by_its_name_or_by_what_it_is_like(said: dict[str, str], name: str | None) -> None:
    found = distribution(said)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("name", "release", "commands"),
    [
        ("debian", "6.1.0-18-amd64", ["apt-get * install python3-bpfcc", "apt-get * install linux-headers-6.1.0-18-amd64 || * linux-headers-amd64"]),
        ("ubuntu", "6.8.0-45-generic", ["python3-bpfcc", "linux-headers-6.8.0-45-generic || * linux-headers-generic"]),
        ("fedora", "6.11.4-301.fc41.x86_64", ["dnf -y install python3-bcc", "kernel-devel-6.11.4-301.fc41.x86_64 || * kernel-devel"]),
        ("arch", "6.11.5-arch1-1", ["pacman -S --noconfirm --needed python-bcc", "pacman -S --noconfirm --needed linux-headers"]),
        ("arch", "6.6.58-1-lts", ["python-bcc", "linux-lts-headers || * linux-headers"]),
        ("alpine", "6.12.79-0-virt", ["apk --update-cache add py3-bcc", "linux-virt-dev || * linux-lts-dev"]),
    ],
)
def test_what_is_installed_where(bare: Callable[[str, str], None], name: str, release: str, commands: list[str]) -> None:
    bare(name, release)
    steps = [str(step) for step in fixes.plan([BCC, HEADERS, TRACEFS, UNMENDABLE]) if step.commands and step.needed]
    for step, wanted in zip(steps, [*commands, MOUNT], strict=True):
        for part in wanted.split("*"):
            assert part.strip() in step


def test_the_one_command_for_a_shell_goes_on_where_lists_cannot_be_had(bare: Callable[[str, str], None]) -> None:
    bare("debian", "6.1.0")
    one = fixes.as_one_command(fixes.plan([BCC, HEADERS, TRACEFS]))
    assert one.startswith("sudo sh -c 'apt-get -q update; apt-get ") and one.endswith(f"; }} && {MOUNT}'")
    assert "linux-headers-6.1.0 || " in one


def test_an_unknown_distribution_is_not_guessed_at_and_what_needs_no_packages_is_mended_there(bare: Callable[[str, str], None]) -> None:
    bare("void", "6.1.0")
    with pytest.raises(HostError, match="none of Debian, Ubuntu, Fedora, Arch and Alpine"):
        fixes.plan([BCC, TRACEFS])
    assert [str(step) for step in fixes.plan([TRACEFS])] == [MOUNT]


@pytest.mark.parametrize("parts", [["linux-headers-6.1.0-9-amd64"], ["linux-headers-6.1.0-9-common", "linux-headers-6.1.0-9-amd64"]])
def test_the_newest_whole_tree_is_linked(tmp_path: Path, parts: list[str]) -> None:
    for name in ("linux-headers-6.1.0-8-amd64", parts[-1], "linux-headers-6.1.0-10-amd64"):
        make(tmp_path / "usr/src" / name / "include/generated/autoconf.h", name)
    for name in ("linux-headers-6.1.0-8-amd64", parts[0]):
        make(tmp_path / "usr/src" / name / "include/linux/kconfig.h", name)
    found = headers.trees(tmp_path)
    assert [part.name for part in found] == parts
    to = tmp_path / "var/headers"
    make(to / "old", "")
    headers.link(found, to)
    assert (to / "include/linux/kconfig.h").read_text() == parts[0] and (to / "include/generated/autoconf.h").read_text() == parts[-1]
    assert not (to / "old").exists() and not (tmp_path / "var/headers.new").exists()


def test_the_kernels_own_headers_are_unpacked(tmp_path: Path) -> None:
    packed, to = tmp_path / "kheaders.tar.xz", tmp_path / "headers"
    with tarfile.open(packed, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("./include/linux/kconfig.h"), io.BytesIO())
    headers.unpack(packed, to)
    assert (to / "include/linux/kconfig.h").exists()


@pytest.mark.parametrize("mode", [0o757, 0o775])
@pytest.mark.parametrize("which", ["program", "folder"])
def test_a_program_that_others_can_change_is_not_run(tmp_path: Path, which: str, mode: int) -> None:
    folder = tmp_path / "bin"
    make(folder / "apt-get", "")
    folder.chmod(0o755)
    (folder / "apt-get").chmod(0o755)
    assert fixes.program("apt-get", [str(folder)], os.getuid()) == folder / "apt-get"
    (folder / "apt-get" if which == "program" else folder).chmod(mode)
    with pytest.raises(HostError, match="others than root can change"):
        fixes.program("apt-get", [str(folder)], os.getuid())


def test_a_link_to_what_others_can_change_is_not_followed(tmp_path: Path) -> None:
    make(tmp_path / "theirs" / "apt-get", "")
    (tmp_path / "theirs").chmod(0o777)
    (tmp_path / "bin").mkdir(mode=0o755)
    (tmp_path / "bin" / "apt-get").symlink_to(tmp_path / "theirs" / "apt-get")
    with pytest.raises(HostError, match="can change"):
        fixes.program("apt-get", [str(tmp_path / "bin")], os.getuid())


def test_nothing_of_the_callers_environment_reaches_what_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "env", "#!/bin/sh\necho forged")
    (tmp_path / "env").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_PRELOAD", "/nowhere.so")
    fixes.carry_out([fixes.Step((("false",), ("env", "--", "env")))], lambda line: None)
    seen = capfd.readouterr()
    assert "DEBIAN_FRONTEND=noninteractive" in seen.err and not seen.out
    assert "LD_PRELOAD" not in seen.err and "forged" not in seen.err and str(tmp_path) not in seen.err


def test_the_first_step_that_fails_ends_it_unless_it_may() -> None:
    begun: list[str] = []
    steps = [fixes.Step((("false",),), needed=False), fixes.Step((("false",),)), fixes.Step((("true",),))]
    with pytest.raises(HostError, match="false failed"):
        fixes.carry_out(steps, begun.append)
    assert begun == ["false", "false"]


def fix(yes: bool = False, json: bool = False) -> int:
    return command.run(argparse.Namespace(pid=None, json=json, fix=True, yes=yes, compile=None, args=[], include=[]))


@pytest.fixture
def lacking(bare: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is run on a host that lacks bcc."""
    bare("debian", "6.1.0")
    ran: list[str] = []
    monkeypatch.setattr(command, "findings", lambda pid=None, patterns=(): [BCC] if not ran else [])
    monkeypatch.setattr(command, "carry_out", lambda steps, saying: ran.extend(map(str, steps)))
    return ran


@pytest.mark.parametrize(("terminal", "answer", "does"), [(True, "y\n", True), (True, "\n", False), (True, "", False), (False, "y\n", False)])
def test_root_is_asked_first(
    lacking: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, answer: str, does: bool
) -> None:
    stdin = io.StringIO(answer)
    stdin.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if does:
        assert fix() == 0
    else:
        with pytest.raises(HostError, match="nothing was changed"):
            fix()
    assert bool(lacking) == does
    assert "install python3-bpfcc" in capsys.readouterr().err


def test_yes_is_not_asked_and_json_stays_json(lacking: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert fix(yes=True, json=True) == 0
    assert lacking[0] == "apt-get -q update" and capsys.readouterr().out.startswith("{")


def test_others_than_root_get_one_command(lacking: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match=r"as one command: sudo sh -c 'apt-get -q update; .*python3-bpfcc'"):
        fix(yes=True)
    assert not lacking


def test_yes_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="--yes has no effect without --fix"):
        command.run(argparse.Namespace(pid=None, json=False, fix=False, yes=True, compile=None))


def test_bcc_of_the_distribution_serves_a_python_that_does_not_see_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(host, "_LIBRARIES", tmp_path)
    assert host.bcc() is None and host._bcc().fix == FIX
    make(tmp_path / "python3.13/site-packages/bcc/__init__.py", "")
    assert host.bcc() == tmp_path / "python3.13/site-packages/bcc/__init__.py" and host._bcc().ok == "ok"


def test_every_distribution_is_whole() -> None:
    for known in distributions._DISTRIBUTIONS.values():
        assert isinstance(known, Distribution) and known.bcc and known.headers_of("6.1.0") and known.headers[-1].isascii()
        assert "{" not in known.headers[-1]  # one that any kernel's host can try


def make(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
