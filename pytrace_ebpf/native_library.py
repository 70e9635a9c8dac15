"""Loads a compiled library of ours, unless it was built from other sources than lie here, as after a `git pull`: what Python passes may mean something else to it."""

import ctypes
import hashlib
from pathlib import Path

from pytrace_ebpf.errors import HostError


def load(file: Path) -> ctypes.CDLL:
    """Raises OSError where it does not load, HostError where it is of other sources."""
    library = ctypes.CDLL(str(file))
    try:
        told = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "pytrace_sources"))).decode()
    except ValueError:
        raise HostError(f"{file} is of an older version than the rest; run `make setup` in the checkout") from None
    for line in told.splitlines()[1:]:
        digest, name = line.split("  ")
        source = file.parents[2] / name  # a wheel has those of the library's own folder there
        if source.exists() and hashlib.sha256(source.read_bytes()).hexdigest() != digest:
            raise HostError(f"{file} was built before {name} was changed; run `make setup` in the checkout")
    return library
