"""A user's program whose memory is full of forged code objects, or whose command line never ends, still gets a source."""

import os
import subprocess
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.record.cpython.encodable import unencodable, unencodable_path
from pytrace_ebpf.record.cpython.frames import open_frames
from pytrace_ebpf.record.process.target import inspect
from tests.bpf.conftest import COMMAND
from tests.conftest import PATIENCE_S

NOBODY = 65534
PYTHON = "/usr/bin/python3.11"
# Objects of the type of code, by the hundred thousand, whose names are wherever `word` leads.
FORGED = """
import array, sys, types
string = chr(0xDCFF) * 10
one = [1, id(types.CodeType)] + [{word}] * 14
memory = array.array("Q", one * 500_000)
print("ready", flush=True)
sys.stdin.readline()
print("done", flush=True)
"""
# 2,000 thread states of 99,000 frames each, as 3.11 has them: one list, one stack, which nobody walks to the end.
STATES = """
import ctypes, os, struct, sys
libc = ctypes.pythonapi
libc.PyThreadState_Get.restype = ctypes.c_void_p
own = libc.PyThreadState_Get()
frames = ctypes.create_string_buffer(99_000 * 80)
at = ctypes.addressof(frames)
code = id((lambda: 0).__code__)
for i in range(98_999):
    struct.pack_into("<QQ", frames, i * 80 + 32, code, 0)
    struct.pack_into("<Q", frames, i * 80 + 48, at + (i + 1) * 80)
entry = ctypes.create_string_buffer(struct.pack("<QQ", 0, at), 16)
states = ctypes.create_string_buffer(ctypes.string_at(own, 360) * 2_000, 2_000 * 360)
first = ctypes.addressof(states)
for i in range(2_000):
    struct.pack_into("<Q", states, i * 360 + 8, first + (i + 1) * 360 if i < 1_999 else 0)
    struct.pack_into("<Q", states, i * 360 + 56, ctypes.addressof(entry))
ctypes.memmove(own + 8, struct.pack("<Q", first), 8)
print("ready", flush=True)
os.read(0, 1)
os._exit(0)
"""
WORDS = {"nowhere": "2**47 - 8", "outside": "2**63 + 1", "inside it": "id(string) + 8", "at code": "id(types.CodeType)"}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the tracer is root here, and its targets are not")


def started(source: str, *args: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", source, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=NOBODY,
        group=NOBODY, extra_groups=[], cwd="/",
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("kind", WORDS)
def test_forged_code_objects_are_rejected(kind: str) -> None:
    process = started(FORGED.format(word=WORDS[kind]))
    try:
        assert unencodable(inspect(process.pid)) == ""
    finally:
        process.communicate("\n")
    assert process.returncode == 0


def test_a_walk_over_forged_thread_states_ends() -> None:
    process = started(STATES)
    try:
        target = inspect(process.pid)
        assert process.pid in open_frames(target, seconds=0.5)
        assert unencodable(target) == ""
    finally:
        process.communicate("\n")


def test_a_long_command_line_is_read_in_part() -> None:
    process = started("print('ready', flush=True); input()", *["\udcff" * 100_000] * 18)
    try:
        assert unencodable_path(inspect(process.pid)) == ""  # none of it is a script's
    finally:
        process.communicate("\n")


@pytest.mark.bpf
def test_a_forged_name_affects_only_the_process_that_forged_it(tmp_path: Path) -> None:
    process = started(FORGED.format(word="id(string)"))
    words = ["attach", "--source", "usdt", "--pid", str(process.pid), "-o", str(tmp_path / "t")]
    ended = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 3
    assert "no valid UTF-8" in ended.stderr and "use --source agent" in ended.stderr
    recorder = subprocess.Popen([*COMMAND, "attach", "--pid", str(process.pid), "-o", str(tmp_path / "t")], stderr=subprocess.PIPE, text=True)
    assert recorder.stderr is not None
    assert any(" by agent: " in line for line in recorder.stderr)
    said, _ = process.communicate("\n")
    recorder.communicate()
    assert (said, process.returncode) == ("done\n", 0)
    assert pytrace_ebpf.open(tmp_path / "t").manifest["state"] == "complete"


# Everything that a user can call something by, when others wait for it: sockets, processes at their other ends, children, files.
CALLED_SO = """
import ctypes, os, socket, sys, tempfile, threading, time
ugly = chr(27) + ']0;owned' + chr(7) + chr(27) + '[2J' + chr(13) + chr(10) + 'eve'
def call_me(name):
    ctypes.CDLL(None).prctl(15, name.encode()[:15], 0, 0, 0)
def answers(server, client):
    for _ in range(4):
        client.recv(1)
        time.sleep(0.1)
        client.sendall(b'!')
    os._exit(0)
def ask(peer):
    for _ in range(4):
        peer.sendall(b'?')
        peer.recv(1)
def reads(path):
    with open(path) as file:
        file.read()
def child():
    pid = os.fork()
    if not pid:
        call_me(ugly[8:])
        time.sleep(0.2)
        os._exit(0)
    os.waitpid(pid, 0)
folder = tempfile.mkdtemp()
os.chdir(folder)
server = socket.socket(socket.AF_UNIX)
server.bind(ugly)
server.listen()
os.mkfifo('fifo' + ugly)
if not os.fork():
    call_me(ugly)
    answers(server, server.accept()[0])
peer = socket.socket(socket.AF_UNIX)
peer.connect(ugly)
print("ready", flush=True)
sys.stdin.readline()
def late():
    time.sleep(0.2)
    open('fifo' + ugly, 'w').close()
threading.Thread(target=late).start()
reads('fifo' + ugly)
ask(peer)
child()
time.sleep(1)
os.remove(ugly)
os.remove('fifo' + ugly)
os.rmdir(folder)
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.bpf
def test_what_a_user_calls_things_moves_no_cursor_of_roots(tmp_path: Path) -> None:
    process = started(CALLED_SO)
    recorder = subprocess.Popen(
        [*COMMAND, "attach", "--source", "agent", "--pid", str(process.pid), "-o", str(tmp_path / "t")], stderr=subprocess.PIPE, text=True
    )
    assert recorder.stderr is not None
    assert any(" by agent: " in line for line in recorder.stderr)
    assert process.communicate("\n")[0] == "done\n"
    recorder.communicate()
    names = pytrace_ebpf.open(tmp_path / "t").resources()
    assert {"unix", "child"} <= set(names["kind"]) and names["name"].str.contains("\x1b", regex=False).any()
    for words in ([], ["--by", "wait"], ["--by", "path"], ["--json"]):
        ended = subprocess.run([*COMMAND, "report", tmp_path / "t", *words], capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 0 and ("eve" in ended.stdout or words != ["--by", "wait"])
        assert all(c.isprintable() or c == "\n" for c in ended.stdout + ended.stderr), words
