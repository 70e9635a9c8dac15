"""What pyproject.toml cannot say: three libraries are compiled for this machine, but not for one Python, since they use no Python.h."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class BuildWithLibraries(build_py):
    """Compile first what rebuilds calls and, on Linux, the agent and what samples from outside: they are data of the package."""

    def run(self) -> None:
        compiler = (os.environ.get("CC") or "gcc").split()[0]
        if sys.platform != "win32" and shutil.which(compiler):
            subprocess.run([Path(__file__).parent / "scripts" / "build-libraries.sh"], check=True)
        else:
            self.warn(
                f"built without what rebuilds the calls of a trace and without the agent (--source agent), for which it takes a C compiler ({compiler})"
            )
        super().run()


class OfThisMachine(Distribution):
    """Holds machine code."""

    def has_ext_modules(self) -> bool:
        return True


class ForAnyPython(bdist_wheel):
    """Serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=OfThisMachine, cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": ForAnyPython})
