"""What pyproject.toml's tests need, one a line: for pip, where the project itself is not to be built."""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]


def of(extra: str) -> list[str]:
    """An extra's packages, and those of the extras that it names."""
    found = []
    for each in PROJECT["optional-dependencies"][extra]:
        named = re.fullmatch(r"pytrace-ebpf\[(.*)\]", each)
        found += [package for one in named[1].split(",") for package in of(one)] if named else [each]
    return found


print(*(each.replace(" ", "") for each in [*PROJECT["dependencies"], *of("test")]), sep="\n")
