"""What pyproject.toml cannot say: the agent is compiled for this machine, but not for one Python, since it uses no Python.h."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class BuildWithAgent(build_py):
    """Compile the agent first: it is data of the package. Who only reads traces needs neither it nor a compiler."""

    def run(self) -> None:
        compiler = (os.environ.get("CC") or "gcc").split()[0]
        if sys.platform == "linux" and shutil.which(compiler):
            subprocess.run([Path(__file__).parent / "scripts" / "build-agent.sh"], check=True)
        else:
            self.warn(f"built without the agent (--source agent), for which it takes Linux and a C compiler ({compiler})")
        super().run()


class OfThisMachine(Distribution):
    """Holds machine code."""

    def has_ext_modules(self) -> bool:
        return True


class ForAnyPython(bdist_wheel):
    """Serves every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=OfThisMachine, cmdclass={"build_py": BuildWithAgent, "bdist_wheel": ForAnyPython})
