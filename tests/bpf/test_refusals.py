"""What cannot be traced is refused in one sentence, with the documented exit code, and nothing is left behind."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.options import Options
from pytrace_ebpf.record.session import Session
from pytrace_ebpf.record.usdt.calls import UsdtCalls
from tests.bpf.conftest import COMMAND
from tests.conftest import HOST_PYTHON, PATIENCE_S, Target, without_rights


def refused(*words: str) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    ended = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.startswith("pytrace-ebpf: ")
    return ended.returncode, ended.stderr


def gone() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_no_such_process(tmp_path: Path) -> None:
    code, said = refused("attach", "--pid", str(gone()), "-o", str(tmp_path / "t"))
    assert code == 3 and "does not exist" in said
    assert not (tmp_path / "t").exists()


def test_not_a_python(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        code, said = refused("attach", "--pid", str(child.pid), "-o", str(tmp_path / "t"))
    finally:
        child.kill()
        child.wait()
    assert code == 3 and "Python" in said


@pytest.fixture
def without_probes(tmp_path: Path) -> Path:
    """The host's Python without the notes that tell of its probes, as most builds are."""
    python = tmp_path / "python3.11"
    subprocess.run(["objcopy", "--remove-section=.note.stapsdt", f"/usr/bin/python{HOST_PYTHON}", python], check=True)
    return python


def test_a_python_without_probes_says_what_would_serve(tmp_path: Path, without_probes: Path) -> None:
    child = subprocess.Popen([without_probes, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    code, said = refused("attach", "--source", "usdt", "--pid", str(child.pid), "-o", str(tmp_path / "t"))
    child.communicate(b"\n")
    assert code == 3 and "agent" in said


def test_what_the_agent_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    program = "import sys; sys.settrace(lambda *_: None); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([f"/usr/bin/python{HOST_PYTHON}", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        code, said = refused("attach", "--pid", str(process.pid), "--source", "agent", "--lines", "exact", "-o", str(tmp_path / "trace"))
        process.stdin.close()
    assert code == 3
    assert "leave out --lines" in said


def test_a_folder_that_is_in_use(tmp_path: Path, target: Callable[..., Target]) -> None:
    (tmp_path / "precious").write_text("data")
    code, said = refused("attach", "--pid", str(target("sleeper", "--wait").pid), "-o", str(tmp_path))
    assert code == 2 and "not empty" in said
    assert (tmp_path / "precious").read_text() == "data"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    code, said = refused("run", "-o", str(tmp_path / "t"), "--", "/no/such/program")
    assert code == 3 and "/no/such/program" in said


def test_without_privileges(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    ended = subprocess.run(
        without_rights(65534, *COMMAND[1:], "attach", "--pid", str(os.getpid()), "-o", str(tmp_path / "t")),
        capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    assert ended.returncode == 4, ended.stderr
    assert len(ended.stderr.splitlines()) == 1 and "sudo" in ended.stderr


@pytest.mark.parametrize("wrapper", [[], ["/usr/bin/env"]])
def test_a_python_without_probes_is_not_run_untraced(tmp_path: Path, without_probes: Path, wrapper: list[str]) -> None:
    program = f"open({str(tmp_path / 'ran')!r}, 'w')"
    code, said = refused("run", "-q", "--source", "usdt", "-o", str(tmp_path / "t"), "--", *wrapper, str(without_probes), "-c", program)
    assert code == 3 and "agent" in said
    assert not (tmp_path / "ran").exists() and not (tmp_path / "t").exists()


def test_a_program_that_embeds_python_and_runs_nothing_in_it_is_said_to_have_no_agent(tmp_path: Path, run: Callable[..., tuple]) -> None:
    source, program = tmp_path / "embeds.c", tmp_path / "embeds"
    library = next(Path("/usr/lib").glob(f"*-linux-gnu/libpython{HOST_PYTHON}.so.1.0"), None)
    if library is None:
        pytest.skip(f"there is no libpython{HOST_PYTHON}")
    source.write_text("void Py_Initialize(void); int main(void) { Py_Initialize(); }")
    subprocess.run(["cc", str(source), str(library), "-o", str(program)], check=True)
    directory, ended = run([str(program)], "--source", "agent")
    assert ended.returncode == 0 and "none was executed" in ended.stderr
    assert [each["source"] for each in pytrace_ebpf.open(directory).manifest["sources"]] == [None]


def test_a_process_that_ends_while_it_is_attached_to(tmp_path: Path, target: Callable[..., Target], monkeypatch: pytest.MonkeyPatch) -> None:
    process = target("sleeper", "--wait")

    def late(self: UsdtCalls, *rest: object) -> None:
        process.kill()
        process.process.wait()
        opened(self, *rest)

    opened = UsdtCalls.attach
    monkeypatch.setattr(UsdtCalls, "attach", late)
    session = Session(Options(tmp_path / "t"), [])
    try:
        with pytest.raises(TargetError, match="ended"):
            session.start(process.pid)
    finally:
        session.close()
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("streams", [">/dev/full", "2>/dev/full", ">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_program_has_the_streams_that_the_command_had_and_its_trace_is_whole(tmp_path: Path, streams: str) -> None:
    """What is closed is closed to the program; what the tracer cannot say ends no recording."""
    program = "import os, sys\ndef seen(n):\n    try: return os.readlink(f'/proc/self/fd/{n}')\n    except OSError: return 'closed'\n"
    program += "open(sys.argv[1], 'w').write(repr([seen(n) for n in (1, 2)]))\nos._exit(7)"
    words = [f"/usr/bin/python{HOST_PYTHON}", "-c", program]

    def shell(*command: object) -> int:
        return subprocess.run(
            ["bash", "-c", f'exec "$@" {streams}', "sh", *map(str, command)], capture_output=True, timeout=PATIENCE_S, check=False
        ).returncode

    assert shell(*words, tmp_path / "plain") == 7
    assert shell(*COMMAND, "run", "-o", tmp_path / "trace", "--", *words, tmp_path / "traced") == 7
    plain, traced = ((tmp_path / name).read_text().replace("pipe:[", "").split(", ") for name in ("plain", "traced"))
    assert [each.strip("[]'") in ("closed", "/dev/full") for each in plain] == [each.strip("[]'") in ("closed", "/dev/full") for each in traced]
    assert [each for each in plain if "closed" in each] == [each for each in traced if "closed" in each]
    assert pytrace_ebpf.open(tmp_path / "trace").manifest["state"] == "complete"


def test_the_tracer_itself_is_no_target(tmp_path: Path) -> None:
    said = subprocess.run(
        ["sh", "-c", 'exec "$@" --source agent --pid $$', "sh", *COMMAND, "attach", "-o", str(tmp_path / "t")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert said.returncode == 3 and "is the tracer itself" in said.stderr


@pytest.mark.parametrize("of", ["a thread of the kernel", "a zombie", "itself a thread", "nothing", "beyond all"])
@pytest.mark.parametrize("command", ["attach", "attach --sample", "request"])
def test_what_is_no_process_of_a_program_is_refused_in_one_sentence(tmp_path: Path, of: str, command: str) -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with subprocess.Popen(
        [f"/usr/bin/python{HOST_PYTHON}", "-c", "import threading, sys\nt = threading.Thread(target=sys.stdin.read); t.start(); print(t.native_id, flush=True); t.join()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        thread = int(process.stdout.readline())
        pid = {"a thread of the kernel": 2, "a zombie": ended.pid, "itself a thread": thread, "nothing": 0, "beyond all": 1 << 40}[of]
        code, _ = refused(*command.split(), "--pid", str(pid), "-o", str(tmp_path / "t"))
        process.communicate(b"")
    ended.wait()
    assert code == 3 or (command == "request" and code == 4 and pid in (2, ended.pid, thread))  # no daemon runs
    assert not (tmp_path / "t").exists()
