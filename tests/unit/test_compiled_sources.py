"""A compiled library is loaded with the sources that it was built from alone."""

import ctypes
import re
import shutil
from pathlib import Path

import pytest

from pytrace_ebpf import native_library
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild import library
from pytrace_ebpf.record.agent.agent_library import agent_library
from pytrace_ebpf.record.kernel.probe_sources import probes_directory

FILES = {library.FILE: "decode.c", agent_library(): "arena.h", probes_directory() / "remote_sampler/remote_sampler.so": "states.c"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_tells_all_that_it_was_built_from(file: Path) -> None:
    root = file.parents[2]
    text = ctypes.c_char.in_dll(ctypes.CDLL(str(file)), "pytrace_sources")
    told = {root / line.split()[1] for line in ctypes.string_at(ctypes.addressof(text)).decode().splitlines()[1:]}
    own = {*file.parent.glob("*.c"), *file.parent.glob("*.h")}
    included = {(source.parent / name).resolve() for source in told for name in re.findall(r'^#include "(.*)"', source.read_text(), re.M)}
    assert len(own) > 3 and own <= told and included <= told


@pytest.mark.parametrize("file, source", FILES.items(), ids=lambda it: Path(it).name)
def test_one_that_was_built_from_others_is_refused(file: Path, source: str, tmp_path: Path) -> None:
    copy = tmp_path / file.relative_to(file.parents[2])
    copy.parent.mkdir(parents=True)
    shutil.copy(file, copy)
    native_library.load(copy)  # there is nothing to compare, as with what a wheel has elsewhere
    beside = copy.with_name(source)
    shutil.copy(file.with_name(source), beside)
    native_library.load(copy)
    beside.write_text(beside.read_text() + "\n")
    with pytest.raises(HostError, match=f"{file.name} was built before .*/{source} was changed; run `make setup`"):
        native_library.load(copy)


def test_one_that_does_not_say_what_it_was_built_from_is_refused() -> None:
    with pytest.raises(HostError, match="older version"):
        native_library.load(Path("/lib/x86_64-linux-gnu/libc.so.6"))
