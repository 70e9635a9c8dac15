"""A file of probes/, compiled: the maps and structs that it declares, and the instructions of its programs.

A pure value. bcc and clang make it, in a process of their own (workers/compiling.py); what root compiled is kept (program_cache.py).
"""

import base64
import hashlib
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pytrace_ebpf
from pytrace_ebpf import self_command
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import waiting
from pytrace_ebpf.record.kernel import host, program_cache
from pytrace_ebpf.record.kernel.probe_sources import probes_directory, whole

_WORKER = Path(pytrace_ebpf.__file__).parent / "workers" / "compiling.py"


@dataclass(frozen=True)
class MapSpec:
    """A map: its kind (enum bpf_map_type), dtypes of keys and values, number of elements (of a ring: bytes), flags."""

    name: str
    kind: int
    key: np.dtype
    value: np.dtype
    entries: int
    flags: int


@dataclass(frozen=True)
class Compiled:
    """`programs`: name -> instructions, where the place of a map in `maps` stands for its descriptor; `structs`: those with a LAYOUT."""

    maps: tuple[MapSpec, ...]
    structs: dict[str, np.dtype]
    programs: dict[str, bytes]


@dataclass(frozen=True)
class Kernel:
    """One to compile for: its release, the headers that it is to find by itself (None: where it has its modules), and those to compile with now."""

    release: str
    tree: Path | None
    headers: Path | None


def this_kernel() -> Kernel:
    """The one that runs."""
    return Kernel(platform.release(), host.header_tree(), host.header_tree())


def compiled(source: str, kernel: Kernel | None = None) -> Compiled:
    """A file of probes/ for this host, and this kernel where no other is given.

    Raises HostError where the headers or bcc refuse, with the first line of what they said.
    """
    kernel = kernel or this_kernel()
    text = whole(probes_directory(), source)
    key = _key(text, kernel)
    content = program_cache.load(key)
    if content is None:
        content = _compile(source, text, kernel)
        program_cache.keep(key, content)
    return _parsed(content)


def is_kept(source: str, kernel: Kernel | None = None) -> bool:
    """Whether compiled() has it already."""
    return program_cache.load(_key(whole(probes_directory(), source), kernel or this_kernel())) is not None


def _key(text: str, kernel: Kernel) -> str:
    """What the result depends on: the C, the code that describes it, bcc, and the kernel with its headers."""
    bcc = host.bcc()
    version = bcc.with_name("version.py") if bcc is not None else None
    parts = (
        text,
        _WORKER.read_text(),
        version.read_text() if version is not None and version.exists() else "",
        kernel.release,
        platform.machine(),
        str(kernel.tree),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _compile(source: str, text: str, kernel: Kernel) -> bytes:
    environment = dict(os.environ)
    if kernel.headers is not None:
        environment["BCC_KERNEL_SOURCE"] = str(kernel.headers)
    words = self_command.worker("compiling", *(str(bcc.parents[1]) for bcc in (host.bcc(),) if bcc is not None))
    with waiting.on(f"clang, which compiles {source}"):  # for as long as that takes: a slow host is only slow
        done = subprocess.run(words, input=text.encode(), capture_output=True, env=environment)
    if done.returncode == 0:
        return done.stdout
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()] or ["it ended without a message"]
    if said[-1].startswith(("ModuleNotFoundError", "ImportError")):
        raise HostError(f"bcc's Python bindings cannot be imported ({said[-1]}); {host.FIX} installs them")
    detail = next((line for line in said if "error" in line.lower()), said[-1])
    raise HostError(f"the kernel or its headers refuse {source} ({detail.strip()}); see pytrace-ebpf doctor")


def _parsed(content: bytes) -> Compiled:
    stored = json.loads(content)
    return Compiled(
        tuple(MapSpec(**spec | {"key": _dtype(spec["key"]), "value": _dtype(spec["value"])}) for spec in stored["maps"]),
        {name: _dtype(struct) for name, struct in stored["structs"].items()},
        {name: base64.b64decode(code) for name, code in stored["programs"].items()},
    )


def _dtype(described: Any) -> np.dtype:
    """workers/compiling.py's described(), backwards."""
    if isinstance(described, str):
        return np.dtype(described)
    if isinstance(described, list):
        return np.dtype((_dtype(described[0]), tuple(described[1])))
    return np.dtype(described | {"formats": [_dtype(each) for each in described["formats"]]})
