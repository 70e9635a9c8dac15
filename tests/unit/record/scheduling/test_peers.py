"""Who is at the other end: of a pipe and a connection to another process; nobody where it is this one's own; and no more than so many at a time."""

import os
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.record.scheduling import peers
from pytrace_ebpf.record.scheduling.peers import Peers

ANSWERS = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"


def columns(*rows: dict[str, Any]) -> dict[str, np.ndarray]:
    whole = [
        {
            "resource_id": at,
            "kind": "pipe",
            "name": "",
            "local_name": "",
            "listens": False,
            "pid": os.getpid(),
            "peer_pid": 0,
            "inode": 0,
            "peer_command": "",
        }
        | row
        for at, row in enumerate(rows, 1)
    ]
    return {name: np.array([row[name] for row in whole], object if isinstance(whole[0][name], str) else None) for name in whole[0]}


def looked_for(asked: Peers) -> dict[int, tuple[int, str]]:
    found: dict[int, tuple[int, str]] = {}
    until_s = time.monotonic() + 60
    while asked._wanted and time.monotonic() < until_s:
        found |= {int(row["resource_id"]): (row["peer_pid"], row["peer_command"]) for row in asked.found()}
        time.sleep(0.02)
    return found | {int(row["resource_id"]): (row["peer_pid"], row["peer_command"]) for row in asked.found()}


def test_who_has_the_other_end() -> None:
    own, _ = own_ends = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child = subprocess.Popen([sys.executable, "-c", ANSWERS, str(port)], stdin=subprocess.PIPE)
        assert child.stdin
        connection, (host, other) = server.accept()
        ends = {"kind": "tcp", "name": f"{host}:{other}", "local_name": f"127.0.0.1:{port}"}
        rows = ({"inode": os.fstat(child.stdin.fileno()).st_ino}, {"inode": os.fstat(own).st_ino}, ends, ends | {"name": f"{host}:1"})
        asked = Peers()
        asked.ask(columns(*rows, {"kind": "unix", "peer_pid": child.pid}, {"kind": "tcp", "name": "192.0.1.9:80", "local_name": "10.0.0.1:4000"}))
        assert len(asked._wanted) == 5  # but for a connection to another host
        found = looked_for(asked)
        connection.close()
        child.communicate()
    for end in own_ends:
        os.close(end)
    assert {number: pid for number, (pid, _) in found.items()} == {1: child.pid, 3: child.pid, 5: child.pid}
    assert all(name.startswith("python") for _, name in found.values())


ELSEWHERE = """
import os, socket, subprocess, sys
os.environ['PATH'] += ':/usr/sbin'
for command in ("addr add 10.77.0.2/32 dev lo", "addr add 10.77.0.1/32 dev lo", "link set lo up"):
    subprocess.run(["ip", *command.split()], check=True)
server = socket.create_server(("10.77.0.2", 7001))
client = socket.create_connection(("10.77.0.2", 7001), source_address=("10.77.0.1", 40001))
accepted = server.accept()
print("ready", flush=True)
sys.stdin.read()
"""
IP = shutil.which("ip") or (shutil.which("ip", path="/usr/sbin"))


@pytest.mark.skipif(os.geteuid() != 0 or IP is None, reason="makes networks")
@pytest.mark.parametrize("of_user", [False, True])
def test_who_is_in_another_network(of_user: bool) -> None:
    """As in a container. What a user makes up in a network of his own is believed by nobody."""
    command = ["unshare", "-Urn" if of_user else "-n", "/usr/bin/python3", "-c", ELSEWHERE]
    there = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=65534 if of_user else None, cwd="/")
    assert there.stdin and there.stdout
    if there.stdout.readline() != "ready\n":
        pytest.skip("no networks can be made here")
    asked = Peers()
    asked.ask(columns({"kind": "tcp", "name": "10.77.0.2:7001", "local_name": "10.77.0.1:40001"}))
    found = looked_for(asked)
    there.stdin.close()
    there.wait()
    assert {number: pid for number, (pid, _) in found.items()} == ({} if of_user else {1: there.pid})


def test_no_more_than_so_many_are_looked_for_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_MOST", 10)
    asked = Peers()
    for part in range(3):
        asked.ask({**columns(*[{}] * 20), "resource_id": np.arange(20) + 20 * part})
    assert list(asked._wanted) == list(range(50, 60))
