"""The agent is asked while a pending call is made, in a program that has probes at its lines: as where probes give way to it."""

import os
import subprocess
from pathlib import Path

import pytest

from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import parse
from tests.agent_arena import ACTIVE, Session
from tests.conftest import PATIENCE_S
from tests.unit.agent_pythons import built

PYTHON = Path("/usr/bin/python3.11")
# The semaphore is all that the interpreter sees of probes. What the agent imports asks it again, and then calls a function.
PROGRAM = """
import ctypes, os, sys
directory, semaphore = sys.argv[1:]
ctypes.c_uint16.from_address(int(semaphore)).value += 1
asked = []
def step(): pass
class Asks:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "atexit":
            asked.append(ctypes.CDLL(f"{directory}/agent.so").pytrace_look())
        step()
sys.modules.pop("atexit", None)
sys.meta_path.insert(0, Asks)
ctypes.CDLL(f"{directory}/agent.so")
while not os.path.exists(f"{directory}/enough"):
    step()
assert asked
"""
# As the tracer has it loaded: what it leaves then is made right after that, before the interpreter is done with pending calls.
LOADED_IN_A_PENDING_CALL = """
import ctypes, os, sys
directory, semaphore = sys.argv[1:]
ctypes.c_uint16.from_address(int(semaphore)).value += 1
def step(): pass
text = ctypes.create_string_buffer(f"ctypes.CDLL({directory!r} + '/agent.so')".encode())
ctypes.pythonapi.Py_AddPendingCall(ctypes.cast(ctypes.pythonapi.PyRun_SimpleString, ctypes.c_void_p), text)
while not os.path.exists(f"{directory}/enough"):
    step()
"""
pytestmark = [built, pytest.mark.skipif(not PYTHON.exists(), reason="no Python with probes at its lines is here")]


@pytest.mark.parametrize("program", [PROGRAM, LOADED_IN_A_PENDING_CALL], ids=["again", "loaded in a pending call"])
def test_it_is_begun_and_the_program_goes_on(tmp_path: Path, program: str) -> None:
    binary = parse(Descriptor(os.open(PYTHON, os.O_RDONLY)))
    if binary.is_pie or not binary.probes.get("line"):
        pytest.skip("it has no probes at its lines, or lies where it likes")
    session = Session(tmp_path / "session")
    process = subprocess.Popen([PYTHON, "-c", program, str(session.directory), str(binary.probes["line"][0].semaphore_vaddr)])
    try:
        session.wait(ACTIVE)
        (session.directory / "enough").touch()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
