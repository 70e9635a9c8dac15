"""The eBPF programs, compiled before they are asked for: for this kernel, or for one that will be booted. What is there is kept."""

import platform
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import bpf_object, headers, host
from pytrace_ebpf.record.kernel.bpf_object import Kernel
from pytrace_ebpf.record.kernel.probe_sources import probes_directory

_OF = {"blocks.c": "--native-memory", "native.c": "--layers"}  # which not every processor has
_MODULES = Path("/lib/modules")
_RELEASE = re.compile(r"\d[\w.+~-]*")


def sources() -> list[str]:
    """Files of probes/ that this processor has a use for."""
    names = sorted(path.name for path in probes_directory().glob("*.c"))
    return [name for name in names if _OF.get(name) not in processors.here().lacks]


def all_kept() -> bool:
    """Whether nothing is left to compile for this kernel."""
    return all(bpf_object.is_kept(name) for name in sources())


def compile_all(release: str, saying: Callable[[str], None]) -> bool:
    """Compile what is not kept yet for a kernel of that release; `saying` gets a sentence each. Whether all of it is there now.

    Raises HostError where there are no headers to compile with.
    """
    kernel = _kernel(release)
    whole = True
    with tempfile.TemporaryDirectory(prefix="pytrace-ebpf-") as folder:
        merged = Path(folder) / "headers"
        for name in sources():
            if bpf_object.is_kept(name, kernel):
                continue
            if release != platform.release() and kernel.tree is None and not merged.exists():  # Debian has split them
                parts = headers.parts_of(_MODULES / release / "build")
                if not parts:
                    raise HostError(f"a part of the headers of Linux {release} is missing; the first recording under it looks again")
                headers.link(parts, merged)
                kernel = Kernel(release, None, merged)
            saying(f"compiling {name} for Linux {release}")
            began = time.monotonic()
            try:
                bpf_object.compiled(name, kernel)
            except HostError as error:
                whole = False
                saying(str(error))
            else:
                saying(f"compiled {name} in {time.monotonic() - began:.1f} s")
    return whole


def _kernel(release: str) -> Kernel:
    """As the kernel of that release will find its headers."""
    if release == platform.release():
        return bpf_object.this_kernel()
    if not _RELEASE.fullmatch(release):
        raise HostError(f"{release!r} is no release of a kernel, as 6.1.0-18-amd64 is one")
    if (_MODULES / release / "build").is_dir():
        return Kernel(release, None, None)
    tree = host.SYSTEM_HEADERS
    if not (tree / "include" / "linux").is_dir():
        raise HostError(f"there are no headers of Linux {release} to compile with, and no others in {tree}; the first recording under it looks again")
    return Kernel(release, tree, tree)
