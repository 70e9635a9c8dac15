"""The numbers that probes/events.h and trace/schema.py must agree on."""

import re

import pytest

from pytrace_ebpf.record.bpf import probes_directory
from pytrace_ebpf.trace.schema import LOSS_CLASSES, CallKind, SchedKind

DEFINES = dict(re.findall(r"#define (\w+) (\d+)", (probes_directory() / "events.h").read_text()))


def defined(prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): int(value) for name, value in DEFINES.items() if name.startswith(prefix)}


@pytest.mark.parametrize(("prefix", "kind", "elsewhere"), [("CALL_", CallKind, set()), ("SCHED_", SchedKind, {"SNAPSHOT"})])
def test_kinds(prefix: str, kind: type[CallKind | SchedKind], elsewhere: set[str]) -> None:
    assert defined(prefix) == {member.name: member.value for member in kind if member.name not in elsewhere}


def test_loss_classes() -> None:
    counters = defined("LOSS_")
    assert counters.pop("CLASSES") == len(LOSS_CLASSES)
    assert counters == {name.upper(): index for index, name in enumerate(LOSS_CLASSES)}
