"""What is installed is what lies here: every module, and every probe beside them."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def files(folder: str, *patterns: str) -> set[str]:
    return {str(path.relative_to(REPOSITORY)) for pattern in patterns for path in (REPOSITORY / folder).rglob(pattern)}


def test_a_wheel_holds_every_module_and_every_probe(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    for name in ("pytrace_ebpf", "probes"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "scripts/build-agent.sh", tmp_path / "scripts")
    build = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", "."]
    subprocess.run(build, cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    probes = {f"pytrace_ebpf/{name}" for name in files("probes", "*.c", "*.h")}
    agent = {"pytrace_ebpf/probes/agent/agent.so"}  # compiled by the build
    assert probes and shipped == files("pytrace_ebpf", "*.py") | probes | agent
