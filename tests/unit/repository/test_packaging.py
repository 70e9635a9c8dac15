"""What is installed is what lies here: every module, the data they read, and every probe beside them; and it works in clean environments."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.conftest import PATIENCE_S, REPOSITORY
from tests.environments import build, clean, pythons, source_in, the_wheel
from tests.unit.synthetic import sample

LIBRARIES = {
    "pytrace_ebpf/probes/agent/agent.so",
    "pytrace_ebpf/probes/remote_sampler/remote_sampler.so",
    "pytrace_ebpf/rebuild/rebuild.so",
}  # compiled by the build
PROGRAM = "def leaf(): pass\nfor _ in range(1000): leaf()"
COMPLETIONS = ("bash-completion/completions/pytrace-ebpf", "zsh/site-functions/_pytrace-ebpf", "fish/vendor_completions.d/pytrace-ebpf.fish")


def files(folder: str, *patterns: str) -> set[str]:
    return {str(path.relative_to(REPOSITORY)) for pattern in patterns for path in (REPOSITORY / folder).rglob(pattern)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return source_in(tmp_path)


def shipped(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def expected() -> set[str]:
    probes = {f"pytrace_ebpf/{name}" for name in files("probes", "*.c", "*.h")}
    data = files("pytrace_ebpf/record/native", "*.txt") | files("pytrace_ebpf", "*.json")
    data |= files("pytrace_ebpf/view", "*.html") | files("pytrace_ebpf/diff", "*.html") | files("pytrace_ebpf/rules", "*.toml")
    assert probes and len(data) > 1
    rebuild = files("pytrace_ebpf/rebuild", "*.c", "*.h")
    assert rebuild
    return files("pytrace_ebpf", "*.py") | data | probes | rebuild


def said(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([*words], capture_output=True, text=True, cwd="/", env=environment, timeout=PATIENCE_S)


def test_a_wheel_by_way_of_the_sdist_holds_everything_and_works_in_clean_environments(source: Path, tmp_path: Path, quick_compiler: str) -> None:
    found_by_shells = {"man/man1/pytrace-ebpf.1", *COMPLETIONS}
    subprocess.run(
        [sys.executable, REPOSITORY / "scripts/shell_files.py", source / "share"], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True
    )
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "wheels"]
    built = subprocess.run(words, cwd=source, env={**os.environ, "CC": quick_compiler}, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    wheel = the_wheel(source / "wheels")
    data = f"pytrace_ebpf-{pytrace_ebpf.__version__}.data/data/share/"
    assert shipped(wheel) == expected() | LIBRARIES | {data + name for name in found_by_shells}
    assert wheel.name.endswith("-py3-none-manylinux_2_17_x86_64.whl")
    audit = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=True).stdout
    assert 'platform tag: "manylinux_2_17_x86_64"' in " ".join(audit.split())
    trace = sample(tmp_path / "trace")
    for python in pythons():
        commands = clean(python, wheel, tmp_path / python.name, "[record]")
        assert said(commands / "pytrace-ebpf", "--version").stdout.startswith("pytrace-ebpf ")
        assert all((commands.parent / "share" / name).is_file() for name in found_by_shells)
        report = said(commands / "pytrace-ebpf", "report", trace)
        assert report.returncode == 0 and "Functions by self time" in report.stdout, report.stderr
        rows = said(commands / "python", "-c", f"import pytrace_ebpf; print(len(pytrace_ebpf.open({str(trace)!r}).calls()))")
        assert int(rows.stdout) > 0, rows.stderr
        recorded = said(commands / "pytrace-ebpf", "run", "--rootless", "-q", "-o", tmp_path / f"of-{python.name}", "--", python, "-c", PROGRAM)
        assert recorded.returncode == 0, recorded.stderr  # by the agent that lies in the wheel
        found = pytrace_ebpf.open(tmp_path / f"of-{python.name}")
        calls = found.calls().merge(found.functions()[["func_id", "name"]], on="func_id")
        assert (calls["name"] == "leaf").sum() == 1000 and not found.manifest["lost"]


def test_without_a_compiler_the_wheel_is_one_for_any_machine_and_says_what_it_cannot(source: Path, tmp_path: Path) -> None:
    stale = source / "pytrace_ebpf" / "rebuild" / "rebuild.so"
    stale.write_bytes(b"of an earlier build")
    built = build(source, "no-such-compiler")
    assert built.returncode == 0, built.stderr
    wheel = the_wheel(source / "wheels")
    assert shipped(wheel) == expected() and wheel.name.endswith("-py3-none-any.whl")
    assert "built without what rebuilds" in built.stdout + built.stderr
    trace, commands = sample(tmp_path / "trace"), clean(pythons()[-1], wheel, tmp_path / "environment")
    assert said(commands / "pytrace-ebpf", "info", trace).returncode == 0
    report = said(commands / "pytrace-ebpf", "report", trace)
    assert report.returncode == 4 and report.stderr.count("\n") == 1
    assert "no compiled library" in report.stderr and "--no-binary pytrace-ebpf" in report.stderr
    run = said(commands / "pytrace-ebpf", "run", "--rootless", "--", "true")
    assert run.returncode == 4 and run.stderr.count("\n") == 1 and "pytrace-ebpf[record]" in run.stderr


def test_a_compiler_that_fails_fails_the_build(source: Path) -> None:
    assert build(source, "false").returncode != 0
    assert not list(source.rglob("*.so*"))
