"""What a page and exports say of a real program with secrets everywhere, where they are to be confidential."""

import base64
import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytrace_ebpf.cli.main import main
from tests.unit.agent_pythons import built

pytestmark = [built, pytest.mark.bpf]
SECRETS = {
    "command": "s3command", "argument": "s3argument", "source": "s3source", "home": "s3home", "sql": "s3table", "url": "s3url", "file": "s3file",
    "socket": "s3socket", "exception": "s3exception", "task": "s3task", "thread": "s3thread", "environment": "s3environment",
}  # fmt: skip
PROGRAM = """
import asyncio, os, socket, sqlite3, sys, threading, time, http.client, http.server
def pay(card):
    with open(f"{folder}/s3file", "w") as file: file.write(card)
    time.sleep(0.002)  # s3source
    raise ValueError("s3exception")
def work():
    for _ in range(100):
        try: pay("s3argument")
        except ValueError: pass
async def fetch(): await asyncio.sleep(0.01)
async def main(): await asyncio.gather(*(asyncio.create_task(fetch(), name="s3task") for _ in range(5)))
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
folder = os.path.dirname(os.path.abspath(__file__))
server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
threading.Thread(target=server.serve_forever, daemon=True, name="s3thread").start()
client = http.client.HTTPConnection("127.0.0.1", server.server_port)
for _ in range(5): client.request("GET", "/s3url"); client.getresponse().read()
connection = sqlite3.connect(":memory:"); connection.execute("create table s3table (x)")
listener = socket.socket(socket.AF_UNIX); listener.bind(f"{folder}/s3socket"); listener.listen()
caller = socket.socket(socket.AF_UNIX); caller.connect(f"{folder}/s3socket"); other, _ = listener.accept()
threading.Timer(0.05, lambda: other.send(b"x")).start(); caller.recv(1)
work(); asyncio.run(main())
"""


def decoded(page: str) -> str:
    """All that a page holds: what it is made of, and its data unpacked, with the numbers of the facts."""
    packed = max(re.findall(r"[A-Za-z0-9+/=]{1000,}", page), key=len)
    return page + gzip.decompress(base64.b64decode(packed)).decode("latin-1")


@pytest.mark.parametrize("way", [("--source", "agent", "--args", "*.pay", "--clients", "raw", "--lines", "exact"), ("--sample",)])
def test_nothing_is_said_but_names(
    way: tuple[str, ...],
    run: Callable[..., tuple[Path, "subprocess.CompletedProcess[str]"]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, exact = tmp_path / "s3home", "agent" in way  # of a short program it is chance what is sampled
    home.mkdir()
    (home / "app.py").write_text(PROGRAM)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop,service.instance.id=s3environment,k8s.pod.name=s3environment")
    trace, ended = run(["/usr/bin/python3.11", str(home / "app.py"), "--key=s3command"], *way)
    assert ended.returncode == 0, ended.stderr
    page = tmp_path / "page.html"
    said = {}
    for option in ((), ("--confidential",)):
        assert main(["report", str(trace), "--html", str(page), *option]) == 0
        assert main(["report", str(trace), "--by", "line", *option]) == 0
        said[option] = decoded(page.read_text()) + capsys.readouterr().out
    assert {kind for kind, secret in SECRETS.items() if secret in said["--confidential",]} == set()
    assert {"command", "home", "environment"} <= {kind for kind, secret in SECRETS.items() if secret in said[()]}  # so the page has been read
    assert not exact or all(name in said["--confidential",] for name in ("pay", "work", "app.py"))
    for to in ("otlp", "pprof", "perfetto", "firefox") if exact else ():
        assert main(["export", str(trace), "--to", to, "--confidential", "-o", str(tmp_path / "out")]) == 0
        content = (tmp_path / "out").read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        assert [kind for kind, secret in SECRETS.items() if secret.encode() in content] == [] and b"work" in content, to
    assert json.dumps(str(trace)) not in said["--confidential",]
