"""A guest's manners: what a program can tell of being attached to, recorded and left; the list stands in docs/how-it-works.md."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.bpf.conftest import Recorder
from tests.conftest import Python, Target

LIBRARY, ARENA = "agent.so", "0.arena (deleted)"


@pytest.mark.parametrize("call", ["in_epoll", "in_poll"])
def test_a_program_that_notices_everything_notices_what_the_docs_say(
    call: str, python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]
) -> None:
    process = target("notices", call, "--wait", "--hold", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.done()
    recorder.stop()
    process.go()
    said = process.done()
    process.go()
    assert process.wait() == 0
    assert said["errors"] == []
    assert said["before"]["threads"] == 5 and said["before"]["maps"]
    during, after = (differences(said["before"], said[when]) for when in ("during", "after"))
    if source == "usdt":
        assert during == after == {}
        return
    hook = {"tools": ["pytrace-ebpf"]} if python.minor >= 12 else {"hooks": ["<built-in function pytrace_thread>"]}
    module = {} if "atexit" in said["before"]["modules"] else {"modules": ["atexit"]}
    assert during == {"threads": 6, "maps": [ARENA, LIBRARY], **module, **hook}
    assert after == {"maps": [f"{LIBRARY} (deleted)"], **module}  # until the program ends


def differences(before: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """What is not as before: of lists what is new, which is to replace nothing but a None; else what it is then."""
    found = {}
    for what in before.keys() | then.keys():
        old, new = before[what], then[what]
        if old != new and isinstance(old, list):
            assert {each for each in old if each not in new} <= {"None", None}, what
            found[what] = [re.sub(r"^/(dev/shm|tmp)/pytrace-ebpf-.*/(\d+\.)?", "", each) for each in new if each not in old]
        elif old != new:
            found[what] = new
    return found
