"""Build and check a release: scripts/release.py VERSION. The commit and the tag are left to a person.

Sets the version in pytrace_ebpf/__init__.py and heads what CHANGELOG.md has under Unreleased with it, builds source, wheels and the Debian package into
dist/, and tries each where nothing of this tree is: a fresh environment of pip's, a fresh root filesystem of the package's release. Where any of that
fails the two files are as they were, and the exit code is 1; 2: there is nothing to release so.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGES, SOURCE = ROOT / "CHANGELOG.md", ROOT / "pytrace_ebpf" / "__init__.py"
UNRELEASED = "## [Unreleased]\n"
_SUITES = ("bookworm", "trixie")
_PROGRAM = "def leaf(): pass\nfor _ in range(1000): leaf()"
_COUNTED = """
import sys, pytrace_ebpf
trace = pytrace_ebpf.open(sys.argv[1])
calls = trace.calls().merge(trace.functions()[["func_id", "name"]], on="func_id")
assert (calls["name"] == "leaf").sum() == 1000, "not all calls were recorded"
"""


class RefusedError(Exception):
    """A sentence."""


def headed(changes: str, version: str, day: str) -> str:
    """The CHANGELOG with what is unreleased under the head of a version, and nothing unreleased."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise RefusedError(f"{version} is no version such as 1.2.3")
    if UNRELEASED not in changes:
        raise RefusedError(f"CHANGELOG.md has no line {UNRELEASED.strip()}")
    if f"## [{version}]" in changes:
        raise RefusedError(f"CHANGELOG.md has a version {version} already")
    before, after = changes.split(UNRELEASED)
    if not re.split(r"^## ", after, maxsplit=1, flags=re.MULTILINE)[0].strip():
        raise RefusedError("CHANGELOG.md says of no change under Unreleased")
    return f"{before}{UNRELEASED}\n## [{version}] - {day}\n{after}"


def numbered(source: str, version: str) -> str:
    """The package's __init__.py of that version, which is newer than its own."""
    found = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    if not found:
        raise RefusedError("pytrace_ebpf/__init__.py has no line __version__")
    if [*map(int, version.split("."))] < [*map(int, found[1].split("."))]:
        raise RefusedError(f"{version} is older than {found[1]}")
    return source.replace(found[0], f'__version__ = "{version}"')


def run(*words: "str | Path", cwd: Path = Path("/")) -> str:
    """What a command says; RefusedError with its last lines where it fails. It knows nothing of this tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RefusedError(f"{' '.join(map(str, words))} failed:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]))
    return done.stdout


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def check_source(archive: Path) -> None:
    """It has what git has of the package and its probes, and no more but what is made for shells and man."""
    tracked = set(run("git", "ls-files", "pytrace_ebpf", "probes", cwd=ROOT).split())
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames() if not opened.getmember(name).isdir()}
    inside = {name for name in packed if name.startswith(("pytrace_ebpf/", "probes/"))}
    unread = {name for name in tracked - inside if Path(name).suffix in (".py", ".c", ".h", ".json", ".html", ".txt")}
    if unread or inside - tracked:
        raise RefusedError(f"{archive.name}: missing {sorted(unread)}, and git does not know {sorted(inside - tracked)}")


def check_wheel(wheel: Path, version: str, whole: bool) -> None:
    """In an environment of its own; `whole`: with the libraries, so that it records."""
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        commands = Path(folder) / "environment" / "bin"
        run(sys.executable, "-m", "uv", "venv", "-q", "-p", "/usr/bin/python3", commands.parent)
        run(sys.executable, "-m", "uv", "pip", "install", "-q", "-p", commands / "python", f"{wheel}[record]")
        check_commands([commands / "pytrace-ebpf"], [commands / "python"], Path(folder), version, whole)


def check_commands(command: "list[str | Path]", python: "list[str | Path]", folder: Path, version: str, whole: bool) -> None:
    said = run(*command, "--version")
    if said.strip() != f"pytrace-ebpf {version}":
        raise RefusedError(f"{command[-1]} --version says {said.strip()}")
    if whole:
        trace = folder / "trace"
        run(*command, "run", "--rootless", "-q", "-o", trace, "--", "/usr/bin/python3", "-c", _PROGRAM)
        if "Functions by self time" not in run(*command, "report", trace):
            raise RefusedError(f"{command[-1]} report shows no functions")
        run(*python, "-c", _COUNTED, trace)


def check_package(package: Path, version: str) -> None:
    """Installed by apt in a fresh root filesystem of its release, used there, and purged."""
    suite = next(suite for suite in _SUITES if suite in package.name)
    run("dpkg-deb", "--info", package)
    if os.geteuid() or not shutil.which("mmdebstrap"):
        say(f"{package.name}: NOT TRIED in a fresh root filesystem, which takes root and mmdebstrap")
        return
    mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian").splitlines()[0]
    tried = (
        f"set -e; test \"$(pytrace-ebpf --version)\" = 'pytrace-ebpf {version}'; pytrace-ebpf run --rootless -q -o /tmp/trace -- python3 -c '{_PROGRAM}'; "
        "pytrace-ebpf report /tmp/trace | grep -q 'Functions by self time'; rm -r /tmp/trace; "
        "apt-get -qq -y purge pytrace-ebpf >/dev/null; test ! -e /usr/lib/pytrace-ebpf; test ! -e /etc/pytrace-ebpf"
    )
    hooks = [
        f"--customize-hook=copy-in {package} /tmp",
        f'--customize-hook=chroot "$1" apt-get -qq -y --no-install-recommends install /tmp/{package.name} >/dev/null',
        f'--customize-hook=chroot "$1" sh -c {shell_quoted(tried)}',
    ]
    run("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", *hooks, suite, "/dev/null", mirror)


def shell_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def build_and_check(version: str) -> None:
    say("source and wheels")
    run("scripts/wheels.sh", cwd=ROOT)
    say("the Debian package")
    run("scripts/deb/build.sh", cwd=ROOT)
    dist = ROOT / "dist"
    for archive in dist.glob("*.tar.gz"):
        say(f"looks at {archive.name}")
        check_source(archive)
    for wheel in sorted(dist.glob("*.whl")):
        if "aarch64" in wheel.name:
            say(f"{wheel.name}: NOT TRIED, this machine is no aarch64")
            continue
        say(f"tries {wheel.name} in an environment of its own")
        check_wheel(wheel, version, whole="manylinux" in wheel.name)
    for package in dist.glob("*.deb"):
        say(f"tries {package.name} in a fresh root filesystem")
        check_package(package, version)


def main(version: str) -> int:
    old = {path: path.read_text() for path in (CHANGES, SOURCE)}
    try:
        new = {CHANGES: headed(old[CHANGES], version, date.today().isoformat()), SOURCE: numbered(old[SOURCE], version)}
        if run("git", "status", "--porcelain", cwd=ROOT):
            raise RefusedError("this tree has changes that are not committed")
        if run("git", "tag", "--list", f"v{version}", cwd=ROOT):
            raise RefusedError(f"there is a tag v{version} already")
    except RefusedError as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 2
    try:
        for path, text in new.items():
            path.write_text(text)
        build_and_check(version)
    except BaseException as failed:
        for path, text in old.items():
            path.write_text(text)
        if not isinstance(failed, RefusedError):
            raise
        print(f"release: {failed}", file=sys.stderr)
        return 1
    say(f"dist/ holds {version}, and it works. What is left is yours:")
    print(f"    git commit -am 'Release {version}'\n    git tag -s v{version}\n    git push origin HEAD v{version}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("release: say which version: make release VERSION=1.2.3", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))
