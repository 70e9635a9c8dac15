"""A compiled library is loaded with the sources that it was built from alone."""

import shutil
from pathlib import Path

import pytest

from pytrace_ebpf import compiled
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild import library
from pytrace_ebpf.record.agent.library import agent_library
from pytrace_ebpf.record.kernel.probe_sources import probes_directory


@pytest.mark.parametrize(
    "file, source",
    [(library.FILE, "decode.c"), (agent_library(), "arena.h"), (probes_directory() / "outside/outside.so", "states.c")],
    ids=lambda it: it and Path(it).name,
)
def test_one_that_was_built_from_others_is_refused(file: Path, source: str, tmp_path: Path) -> None:
    copy = tmp_path / file.relative_to(file.parents[2])
    copy.parent.mkdir(parents=True)
    shutil.copy(file, copy)
    compiled.load(copy)  # there is nothing to compare, as with what a wheel has elsewhere
    beside = copy.with_name(source)
    shutil.copy(file.with_name(source), beside)
    compiled.load(copy)
    beside.write_text(beside.read_text() + "\n")
    with pytest.raises(HostError, match=f"{file.name} was built before .*/{source} was changed; run `make setup`"):
        compiled.load(copy)


def test_one_that_does_not_say_what_it_was_built_from_is_refused() -> None:
    with pytest.raises(HostError, match="older version"):
        compiled.load(Path("/lib/x86_64-linux-gnu/libc.so.6"))
