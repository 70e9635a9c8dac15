"""Which process is sampled, recorded or ignored, and what is wrong with a configuration."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytrace_ebpf.cli.daemon import _loader
from pytrace_ebpf.daemon import finding
from pytrace_ebpf.daemon.configuration import Configuration, load
from pytrace_ebpf.daemon.policy import ACTIONS, Process, Rule, decide, read
from pytrace_ebpf.errors import TargetError, UsageError
from pytrace_ebpf.record.process import descriptors, matching
from pytrace_ebpf.record.process.target import NoRoom

DOCKER = "a1" * 32
WHO = {"service_name": "shop", "k8s_pod_name": "shop-0", "k8s_namespace_name": "store", "k8s_container_name": "web"}
SHOP = Process(7, "/usr/bin/python3 -m gunicorn shop:app", 1000, (f"/system.slice/docker-{DOCKER}.scope",), WHO)


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (Rule("sample"), True),
        (Rule("sample", command=("*gunicorn*",)), True),
        (Rule("sample", command=("gunicorn*",)), False),
        (Rule("sample", command=("*celery*", "*shop:app")), True),
        (Rule("sample", users=(1000,)), True),
        (Rule("sample", users=(0,)), False),
        (Rule("sample", cgroup=("/system.slice/*",)), True),
        (Rule("sample", cgroup=("/user.slice/*",)), False),
        (Rule("sample", container=("a1a1",)), True),
        (Rule("sample", container=("*",)), True),
        (Rule("sample", container=("b",)), False),
        (Rule("sample", pids=(7, 8)), True),
        (Rule("sample", pids=(8,)), False),
        (Rule("sample", command=("*gunicorn*",), users=(0,)), False),
        (Rule("sample", service=("shop",)), True),
        (Rule("sample", service=("pay", "sh*")), True),
        (Rule("sample", service=("pay",)), False),
        (Rule("sample", pod=("store/*",)), True),
        (Rule("sample", pod=("store/*",), unit=("*",)), False),
        (Rule("sample", container=("web",)), True),
    ],
)
def test_a_rule_fits_where_all_that_it_names_does(rule: Rule, fits: bool) -> None:
    assert rule.fits(SHOP) is fits


@pytest.mark.parametrize(
    ("path", "ids"),
    [
        (f"/docker/{DOCKER}", (DOCKER,)),
        (f"/kubepods.slice/pod1.slice/cri-containerd-{DOCKER}.scope", (DOCKER,)),
        (f"/machine.slice/libpod-{DOCKER}.scope/container", (DOCKER,)),
        (f"/user.slice/x{DOCKER}.scope", ()),
        ("/user.slice/user-1000.slice", ()),
        (f"/docker/{DOCKER}{DOCKER}", ()),
    ],
)
def test_a_container_is_known_by_its_control_group(path: str, ids: tuple[str, ...]) -> None:
    assert Process(1, "", 0, (path,)).containers == ids


names = st.text(st.characters(codec="utf-8"), max_size=20)
rules = st.builds(
    Rule,
    st.sampled_from(ACTIONS),
    st.lists(names, max_size=2).map(tuple),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
    st.lists(names, max_size=1).map(tuple),
    st.lists(names, max_size=1).map(tuple),
    st.lists(st.integers(1, 3), max_size=1).map(tuple),
)
processes = st.builds(Process, st.integers(1, 3), names, st.integers(0, 3), st.lists(names, max_size=2).map(tuple))


@given(st.lists(rules, max_size=6), st.sampled_from(("sample", "ignore")), processes)
def test_the_first_rule_that_fits_decides_whatever_a_process_is_called(made: list[Rule], otherwise: str, process: Process) -> None:
    found = decide(made, otherwise, process)
    fitting = [rule for rule in made if rule.fits(process)]
    assert found == (fitting[0] if fitting else Rule(otherwise))


def configured(path: Path, text: str) -> Configuration:
    (path / "daemon.toml").write_text(text)
    return _loader(path / "daemon.toml")()


def test_a_whole_configuration(tmp_path: Path) -> None:
    found = configured(
        tmp_path,
        """
        directory = "/srv/profile"
        hz = 49
        window = "10s"
        max_bytes = "20GiB"
        max_age = "30d"
        otherwise = "ignore"
        [[rule]]
        user = "root"
        command = ["*celery*", "*gunicorn*"]
        action = "sample"
        [[rule]]
        container = "*"
        action = "record"
        options = ["--duration", "30s", "--budget", "5%"]
        """,
    )
    assert (found.directory, found.hz, found.max_bytes, found.max_age_s, found.otherwise) == (
        Path("/srv/profile"), 49.0, 20 << 30, 30 * 86400.0, "ignore",
    )  # fmt: skip
    assert found.rules == (
        Rule("sample", command=("*celery*", "*gunicorn*"), users=(0,)),
        Rule("record", container=("*",), options=("--duration", "30s", "--budget", "5%")),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hz = x", "line 1"),
        ("hzz = 9", "hzz is no key; did you mean hz?"),
        ("hz = 0", "hz is 0, but it must be a number from 1 to 1000"),
        ("hz = true", "hz is True, but"),
        ("hz = nan", "hz is nan, but"),
        ('max_bytes = "20 pounds"', "max_bytes is '20 pounds', but it must be a size"),
        ('max_age = "1s"', "max_age is '1s', but it must be a time of at least a minute"),
        ('directory = "here"', "directory is 'here', but it must be a path that begins with a slash"),
        ('otherwise = "record"', "otherwise is 'record', but it must be sample or ignore"),
        ("rule = 1", "write [[rule]]"),
        ("[[rule]]", "rule 1: action is missing"),
        ('[[rule]]\naction = "sleep"', "rule 1: action is 'sleep', but it must be one of sample, record, ignore"),
        ('[[rule]]\naction = "ignore"\n[[rule]]\naction = "sample"\nuser = "nobody-at-all"', "rule 2: user is 'nobody-at-all', but there is no user"),
        ('[[rule]]\naction = "sample"\ncolour = 1', "rule 1: colour is no key: there are action, command, user"),
        ('[[rule]]\naction = "sample"\nhz = 9', "rule 1: hz is no key of a rule: write it above the first [[rule]]"),
        ('[[rule]]\naction = "sample"\npid = -1', "rule 1: pid is -1, but"),
        ('[[rule]]\naction = "sample"\ncommand = [""]', "rule 1: command is [''], but it must be a text"),
        ('[[rule]]\naction = "sample"\noptions = ["--budget"]', "rule 1: options are of action 'record' alone"),
        ('[[rule]]\naction = "record"\noptions = ["--bugdet"]', "rule 1: options: --bugdet is not an option"),
        ('[[rule]]\naction = "record"\noptions = ["-o", "/x"]', "rule 1: options: which process is recorded and where to says the daemon"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_one_sentence_with_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        configured(tmp_path, text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_example_is_a_configuration() -> None:
    found = load(Path(__file__).parents[3] / "scripts" / "daemon" / "daemon.toml")
    assert [rule.action for rule in found.rules] == ["ignore", "sample"]


def test_a_configuration_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")


def test_the_daemon_refuses_a_wrong_configuration_before_it_does_anything(tmp_path: Path) -> None:
    (tmp_path / "daemon.toml").write_text('directory = "x"')
    words = [sys.executable, "-m", "pytrace_ebpf", "daemon", "--config", str(tmp_path / "daemon.toml")]
    run = subprocess.run([*words, "--check"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)


def test_a_process_name_with_line_breaks_forges_no_user() -> None:
    """What the kernel says of a process begins with its name, which that chooses."""
    program = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'x\\nUid:\\t7\\t7\\n', 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = read(child.pid, b"python\xff \x1b[31m")
        child.communicate()
    assert found is not None
    assert found.uid == os.getuid()
    assert found.command.startswith("python")
    assert read(child.pid, b"") is None


def _only(there: dict[int, matching.Key], monkeypatch: pytest.MonkeyPatch, inspect: Callable[[int], int] = lambda pid: pid) -> None:
    """These are all processes that there are, and Pythons."""
    monkeypatch.setattr(finding, "processes", lambda: sorted(there))
    monkeypatch.setattr(finding, "key_of", there.get)
    monkeypatch.setattr(finding, "command", lambda pid: b"python")
    monkeypatch.setattr(finding, "read", lambda pid, words: Process(pid, "python", 0, ()))
    monkeypatch.setattr(matching, "inspect", inspect)
    monkeypatch.setattr(matching, "is_ours", lambda pid: False)


def test_who_was_left_out_is_sampled_once_others_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {pid: (pid, "1", 1, pid) for pid in (1, 2, 3, 4, 5)}
    _only(there, monkeypatch)
    looking = finding.Finding(configured(tmp_path, "max_processes = 2"))
    looked = [[pid for pid, _ in looking.there()]]
    for ended in ((), (3,), (1,), (2, 4)):
        for pid in ended:
            del there[pid]
        looked.append([pid for pid, _ in looking.there()])
        assert looking.handed + looking.left_out == len(there)
    assert looked == [[1, 2], [], [], [4], [5]] and looking.left_out == 0
    looking.close()


def test_what_could_not_be_opened_is_counted_and_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {pid: (pid, "1", 1, pid) for pid in (1, 2, 3)}
    opens = {1, 2}

    def inspect(pid: int) -> int:
        if pid not in opens:
            raise NoRoom(f"process {pid} cannot be looked at (Too many open files)")
        return pid

    _only(there, monkeypatch, inspect)
    looking = finding.Finding(configured(tmp_path, ""))
    assert ([pid for pid, _ in looking.there()], looking.handed, looking.left_out) == ([1, 2], 2, 1)
    with monkeypatch.context() as nothing:
        nothing.setattr(finding, "processes", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert (looking.there(), looking.handed, looking.left_out) == ([], 2, 1)
    opens.add(3)
    assert ([pid for pid, _ in looking.there()], looking.handed, looking.left_out) == ([3], 3, 0)
    looking.close()


def test_who_could_not_be_looked_at_and_then_gets_anothers_place_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = {1, 2}

    def inspect(pid: int) -> int:
        if pid not in opens:
            raise NoRoom(f"process {pid} cannot be looked at (Too many open files)")
        return pid

    _only({pid: (pid, "1", 1, pid) for pid in (1, 2, 3)}, monkeypatch, inspect)
    monkeypatch.setattr(matching, "user_of", lambda pid: pid // 3)
    looking = finding.Finding(configured(tmp_path, "max_processes = 2"))
    assert ([pid for pid, _ in looking.there()], looking.handed, looking.left_out) == ([1, 2], 2, 1)
    opens.add(3)
    assert ([pid for pid, _ in looking.there()], looking.handed, looking.left_out) == ([3], 2, 1)
    looking.close()


def test_no_more_processes_are_sampled_than_files_may_be_open_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "most", lambda: 200)
    least = finding.Finding(configured(tmp_path, ""))
    monkeypatch.setattr(descriptors, "most", lambda: 1024)
    few = finding.Finding(configured(tmp_path, ""))
    monkeypatch.setattr(descriptors, "most", lambda: 65536)
    many = finding.Finding(configured(tmp_path, ""))
    assert (least.most, few.most, many.most) == (5, 64, 1000)
    least.close()
    few.close()
    many.close()


def test_what_is_to_be_recorded_is_sampled_too_and_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {pid: (pid, "1", 1, pid) for pid in (1, 2)}
    _only(there, monkeypatch)
    looking = finding.Finding(configured(tmp_path, 'max_processes = 1\n[[rule]]\npid = [1, 2]\naction = "record"'))
    assert [pid for pid, _ in looking.there()] == [1]
    assert [pid for pid, _ in looking.take_to_record()] == [1, 2]
    del there[1]
    assert [pid for pid, _ in looking.there()] == [2] and looking.take_to_record() == []
    there[2] = (2, "1", 1, 3)  # another program
    assert [pid for pid, _ in looking.there()] == [2] and [pid for pid, _ in looking.take_to_record()] == [2]
    looking.close()


def test_nothing_is_said_of_a_process_that_ended_while_it_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[int, matching.Key] = {pid: (pid, "1", 1, pid) for pid in (1, 2)}

    def inspect(pid: int) -> int:
        now[1] = None
        raise TargetError(f"process {pid} cannot be sampled, or ended")

    now: dict[int, matching.Key | None] = dict(there)
    _only(there, monkeypatch, inspect)
    monkeypatch.setattr(matching, "key_of", now.get)
    looking = finding.Finding(configured(tmp_path, ""))
    assert [pid for pid, _ in looking.there()] == [2] and looking.handed == 0
    looking.close()


def test_a_configuration_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="more than"):
        load(Path("/dev/zero"))
