"""What a thread has in its vectors is there again after it was made to call something."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pytrace_ebpf.record.agent.inject import ptrace
from pytrace_ebpf.record.agent.inject.mapped_library import loader
from pytrace_ebpf.record.agent.inject.pending_call import make_pending
from pytrace_ebpf.record.agent.inject.remote_call import NoRoom
from pytrace_ebpf.record.process.target import inspect
from tests.conftest import PATIENCE_S

HERE = Path(__file__).parent
CALLS = 20
PROGRAM = """
import ctypes, select, sys
count = ctypes.CDLL(sys.argv[1]).count
count.argtypes, count.restype = (ctypes.c_long,), ctypes.c_long
wrong = 0
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    wrong += count(20_000_000)
print(wrong)
"""


def test_vectors_of_a_thread_that_is_stopped_anywhere_come_back(tmp_path: Path) -> None:
    """Its main thread, in native code: Py_AddPendingCall is called there, of a function that changes nothing and returns 0."""
    library = tmp_path / "vectors.so"
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", str(library), str(HERE / "vectors.c")], check=True)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    target = inspect(process.pid)
    code, harmless = loader(target), target.binary.symbol("PyErr_CheckSignals")
    assert harmless is not None
    called = 0
    for _ in range(CALLS):
        with suppress(ptrace.NotStopped, NoRoom):
            called += make_pending(target, target.bias + harmless, 0, code, None) > 0
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert (said, process.returncode) == ("0\n", 0)
    assert called
