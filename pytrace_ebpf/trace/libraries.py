"""Which source files are a program's own, and which are of libraries."""

import re

FOLDER = r".*/(?:site-packages|dist-packages|lib(?:32|64)?/python3(?:\.?\d+t?)?(?:\.zip)?)/"
"""Regular expression: a path as far as it says that a file is of a library."""
_LIBRARY = re.compile("<(?!stdin>|ipython-input-)|" + FOLDER)  # what is typed is a program's own


def in_library(file: str) -> bool:
    """Whether a source file is of the standard library, or in a folder of libraries; or none, as that of code which the interpreter brings along."""
    return bool(_LIBRARY.match(file))
