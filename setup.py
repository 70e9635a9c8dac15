"""What pyproject.toml cannot say: three libraries are compiled for this machine, but not for one Python, since they use no Python.h.

Where there is no C compiler (CC, else gcc) the wheel is a pure one, for any machine: all but what needs the libraries.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_COMPILER = (os.environ.get("CC") or "gcc").split()[0]
_COMPILES = sys.platform != "win32" and shutil.which(_COMPILER) is not None


class BuildWithLibraries(build_py):
    """Compile first what rebuilds calls and, on Linux, the agent and what samples from outside: they are data of the package."""

    def run(self) -> None:
        if _COMPILES:
            subprocess.run([Path(__file__).parent / "scripts" / "build-libraries.sh"], check=True)
        else:
            self.warn(
                "built without what rebuilds the calls of a trace and without the agent (--source agent), "
                f"for which it takes a C compiler ({_COMPILER})"
            )
        super().run()

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        found = super().find_data_files(package, src_dir)
        return [name for name in found if _COMPILES or not name.endswith(".so")]  # an earlier build's


class OfThisMachine(Distribution):
    """Holds machine code, where it was compiled."""

    def has_ext_modules(self) -> bool:
        return _COMPILES


class ForAnyPython(bdist_wheel):
    """Serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        machine = super().get_tag()[2]
        # scripts/build-libraries.sh has seen to it that no symbol is newer than glibc 2.17.
        if machine in ("linux_x86_64", "linux_aarch64") and platform.libc_ver()[0] == "glibc":
            machine = machine.replace("linux", "manylinux_2_17")
        return "py3", "none", machine


setup(distclass=OfThisMachine, cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": ForAnyPython})
