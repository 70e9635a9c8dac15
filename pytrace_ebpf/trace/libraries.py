"""Which source files are a program's own, and which are of libraries."""

import re

_LIBRARY = re.compile(r"<|.*/(site-packages|dist-packages|python3(\.\d+t?)?(\.zip)?)/")


def in_library(file: str) -> bool:
    """Whether a source file is of the standard library, or in a folder of libraries; or none, as that of code which the interpreter brings along."""
    return bool(_LIBRARY.match(file))
