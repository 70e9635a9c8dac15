"""The C of the probes: where it lies, and the whole text of a file."""

import re
from pathlib import Path

import pytrace_ebpf
from pytrace_ebpf.errors import HostError

_INCLUDE = re.compile(r'#include "([^"]+)"')


def probes_directory() -> Path:
    """Where the C sources are: inside the installed package, or next to it in a checkout."""
    package = Path(pytrace_ebpf.__file__).parent
    for candidate in (package / "probes", package.parent / "probes"):
        if (candidate / "events.h").exists():
            return candidate
    raise HostError("the installation has no probes/ folder; reinstall pytrace-ebpf (make install)")


def whole(folder: Path, name: str) -> str:
    """A source with what it includes of `folder` in place: bcc rewrites map accesses in the main file alone."""
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate((folder / name).read_text().splitlines(), 1):
        included = _INCLUDE.fullmatch(line)
        lines += [whole(folder, included[1]), f'#line {number + 1} "{name}"'] if included else [line]
    return "\n".join(lines) + "\n"
