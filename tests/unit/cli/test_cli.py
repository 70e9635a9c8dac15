"""The command line: help without importing, one sentence for an error, the right exit codes."""

import argparse
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from pytrace_ebpf import __version__
from pytrace_ebpf.cli import export, main
from pytrace_ebpf.cli.export import FORMATS
from pytrace_ebpf.errors import HostError, PytraceError, TargetError
from pytrace_ebpf.options import option_rules, recording
from pytrace_ebpf.record.filters import REDACTED, Observed
from pytrace_ebpf.view.by import BY
from tests.unit.synthetic import sample


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("options") / "trace")


def run(*words: str) -> int:
    try:
        return main.main(words)
    except SystemExit as stop:  # argparse: --help, --version and usage errors
        return int(stop.code or 0)


def test_help_lists_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys; from pytrace_ebpf.cli import main\n"
        "try: main.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not [m for m in sys.modules if m.startswith('pytrace_ebpf.') and m.split('.')[1] in ('record', 'view', 'analyze')]\n"
    )
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert all(name in out for name in main.COMMANDS)


@pytest.mark.parametrize("name", ["report", "export", "info"])
def test_a_commands_docstring_is_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    out = capsys.readouterr().out
    module = sys.modules[f"pytrace_ebpf.cli.{name}"]
    assert (module.__doc__ or "").splitlines()[0] in out and "TRACE" in out and name == module.NAME


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0 and capsys.readouterr().out == f"pytrace-ebpf {__version__}\n"


@pytest.mark.parametrize("words", [(), ("nonsense",), ("report",), ("report", "x", "--by", "moon"), ("export", "x"), ("info", "--nope")])
def test_usage_errors_exit_2(words: tuple[str, ...]) -> None:
    assert run(*words) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("reprot",), "reprot is not a command; did you mean report?"),
        (("hlep",), "hlep is not a command; did you mean help?"),
        (("report", "x", "--bby", "core"), "--bby is not an option or argument of pytrace-ebpf report; did you mean --by?"),
        (("report",), "TRACE is missing; pytrace-ebpf report --help says more"),
        (("export", "x", "--to"), "--to needs a value; pytrace-ebpf export --help says more"),
        (
            ("export", "x", "--to", "icicle"),
            "--to: icicle is a view of a page, not a format; write the page with pytrace-ebpf report TRACE --html FILE",
        ),
        (("report", "x", "--json=3"), "--json takes no value; pytrace-ebpf report --help says more"),
        (("attach", "1", "--max-depth", "x"), "--max-depth takes a number, which x is not; pytrace-ebpf attach --help says more"),
        (("attach", "12,x"), "PID: 12,x is not a process id; give numbers, joined by commas"),
        (("attach", "-p", "x"), "--pid: x is not a process id; give numbers, joined by commas"),
        (("attach", "1", "--duration", "soon"), "'soon' is not a time: give seconds, or 250ms, 90s, 1m30s."),
        (("attach", "1", "--source", "usdt", "--max-depth", "3"), "--max-depth cannot go with --source usdt: only the agent counts"),
        (("run", "--rootless", "--layers", "torch", "--", "x"), "--layers cannot go with --rootless: native calls are recorded by probes"),
        (("attach", "1", "--rootless"), "attach --rootless samples stacks: give --sample"),
        (("attach", "1", "--sample", "--budget", "5%"), "--budget cannot go with --sample without --source: no call is recorded"),
        (("attach", "1", "--sample", "--include", "x"), "--include cannot go with --sample without --source: no call is recorded"),
        (("attach", "1", "--sample", "--faults"), "--faults cannot go with --sample without --source: no call is recorded"),
        (("run", "--rootless", "--faults", "--", "x"), "--faults cannot go with --rootless: page faults are counted in the kernel"),
        (("attach", "1", "--switches"), "--switches has no effect without --sample alone: beside calls switches are recorded anyway"),
        (("attach", "1", "--sample", "--rootless", "--switches"), "--switches cannot go with --rootless: switches are recorded by eBPF"),
        (("attach", "1", "--sample", "--native-memory"), "--native-memory cannot go with --sample without --source: no call is recorded"),
        (("run", "--rootless", "--native-memory", "1", "--", "x"), "--native-memory cannot go with --rootless: malloc is seen by probes"),
        (("attach", "1", "--native-memory", "2GiB"), "--native-memory: 2GiB is too much"),
        (("attach", "1", "--native-memory", "some"), "--native-memory: some is not a size"),
        (
            ("attach", "1", "--source", "usdt", "--memory"),
            "--memory cannot go with --source usdt: only the agent can stand before Python's allocators",
        ),
        (("attach", "1", "--sample", "--args", "x"), "--args cannot go with --sample without --source: no call is recorded"),
        (("attach", "1", "--redact", "x"), "--redact has no effect without --args; leave it out."),
        (("attach", "1", "--sample", "20000"), "--sample: 20000 is not a rate; give samples a second, at most 10,000"),
        (("attach", "1", "--every", "5s"), "--every has no effect without --trigger; leave it out."),
        (("attach", "1", "--after", "0"), "--after has no effect without --trigger; leave it out."),
        (("attach", "1", "--traces", "0", "--trigger", "snap"), "--traces: 0 is not a number of traces; give one from 1"),
        (("attach", "1", "--source", "usdt", "--trigger", "raises f"), "--trigger 'raises f' cannot go with --source usdt: only the agent sees"),
        (
            ("attach", "1", "--budget", "5%", "--trigger", "call f > 1s"),
            "--trigger 'call f > 1s' cannot go with --budget: calls of functions that are left",
        ),
        (
            ("attach", "1", "--sample", "--trigger", "loop > 1s"),
            "--trigger 'loop > 1s' cannot go with --sample without --source: no call is recorded",
        ),
        (("run", "--rootless", "--trigger", "gil > 5%", "--", "x"), "--trigger 'gil > 5%' cannot go with --rootless: what threads wait for"),
        (("attach", "1", *("--trigger", "snap") * 33), "--trigger is given 33 times; 32 conditions are the most."),
        (("run", "--for", "5s", "--", "x"), "--for has no effect without --from-call; leave it out."),
        (("run", "--from-call", "f", "--trigger", "snap", "--", "x"), "--from-call f cannot go with --trigger, nor with another --from-call"),
        (("run", "--from-call", "f", "--from-call", "g", "--", "x"), "--from-call f cannot go with --trigger, nor with another --from-call"),
        (("run", "--from-call", "f", "--retain", "5s", "--", "x"), "--from-call f cannot go with --retain: what was before it is not recorded"),
        (("attach", "1", "--from-call", "f", "--after", "5s"), "--after cannot go with --from-call: it is of --trigger; leave one of them out."),
        (("run", "--sample", "--from-call", "f", "--", "x"), "--from-call f cannot go with --sample without --source: no call is recorded"),
        (("run", "--from-call", "a b", "--", "x"), "--from-call: 'a b' is no function; give one, like app.handle"),
        (("request", "--pid", "1", "--from-call", "f"), "request writes what it records; --from-call is an option of pytrace-ebpf attach."),
        (("attach", "1", "--trigger", "cal f > 1s"), "--trigger: 'cal f > 1s' is not a condition: at character 1 one of call, raises"),
        (("top", "x"), "PID: x is not a process id; give numbers, joined by commas"),
        (("top", "--last", "11m"), "--last: 11m is not a time to look back; give one from 1s to 10m"),
        (("top", "--match", "("), "--match: ( is not a regular expression: "),
        (("top", "--sample", "0"), "--sample: 0 is not a rate; give samples a second, at most 10,000"),
        (("top", "1"), "top needs a terminal; pytrace-ebpf attach --sample records the same, and report shows it"),
        (("report", "x", "--errors", "--by", "gil"), "--errors and --by gil are two reports; ask for one of them."),
    ],
)
def test_a_usage_error_is_one_sentence(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"pytrace-ebpf: {said}") and told.count("\n") == 1


@pytest.mark.parametrize(
    ("redact", "names"), [((), REDACTED), (("x", "y"), (*REDACTED, "x", "y")), (("none",), ()), (("none", "pin"), ("pin",)), (("*token*",), REDACTED)]
)
def test_values_are_asked_of_the_agent_and_what_is_usually_secret_is_redacted(redact: tuple[str, ...], names: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    recording.add_common_arguments(parser)
    args = parser.parse_args(["--args", "shop", "--args", "*/cart.py", *(word for name in redact for word in ("--redact", name))])
    option_rules.to_recording(args)
    asked = recording.options(args)
    assert (asked.source, asked.observed) == ("agent", Observed(("shop", "*/cart.py"), names))
    assert recording.options(parser.parse_args([])).source == "auto" and not recording.options(parser.parse_args([])).observed


VALUES = {
    "sort": ["total"],
    "request": ["f"],
    "slowest": ["2"],
    "html": ["page.html"],
    "request_id": ["7"],
    "function": ["f"],
    "what_if": ["lock"],
    "step": ["f"],
}


@pytest.mark.parametrize("option", option_rules.REPORT)
@pytest.mark.parametrize("by", BY)
def test_an_option_of_report_without_effect_is_refused(
    sampled: Path, by: str, option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fits, written = by in option_rules.REPORT[option], option.replace("_", "-")
    there = fits and option not in ("request_id", "function")  # of which it has none
    assert run("report", str(sampled), "--by", by, f"--{written}", *VALUES.get(option, [])) == (0 if there else 2)
    assert (f"--{written} has no effect with --by {by}, only with" in capsys.readouterr().err) == (not fits)


@pytest.mark.parametrize("to", FORMATS)
def test_an_option_of_export_without_effect_is_refused(sampled: Path, tmp_path: Path, to: str) -> None:
    assert run("export", str(sampled), "--to", to, "--value", "blocked", "-o", str(tmp_path / "out")) == (0 if to in ("folded", "pstats") else 2)
    assert (tmp_path / "out").exists() == (to in ("folded", "pstats"))


@pytest.mark.parametrize(
    "words", [("--pid", "12", "-p", "13,14"), ("12", "13,14"), ("12", "--duration", "1m", "--pid", "13,14"), ("-p12", "-p", "13,14", "-p13")]
)
def test_processes_are_given_in_any_way(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Refused:
        def __init__(self, *_: object) -> None: ...
        def close(self) -> None: ...
        def wake(self) -> None: ...
        def start(self, *pids: int) -> None:
            asked.extend(pids)
            raise TargetError("x")

    monkeypatch.setattr(recording, "prepare", lambda *_: None)
    monkeypatch.setattr(recording, "new_session", Refused)
    assert run("attach", *words, "--match", "x") == 3 and asked == [12, 13, 14]


@pytest.mark.parametrize("words", [("attach", "1"), ("run", "--", "python3", "a b.py")])
def test_who_may_not_trace_is_told_what_needs_no_privileges(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise HostError("this user may not; to fix it: sudo")

    monkeypatch.setattr(recording, "prepare", lambda *_: None)
    monkeypatch.setattr("pytrace_ebpf.record.session.Session", refuse)
    assert run(*words) == 4
    said = capsys.readouterr().err
    assert "may not; to fix it: sudo; without" in said and said.count("\n") == 1
    assert said.endswith("pytrace-ebpf run --rootless -- " + ("COMMAND\n" if words[0] == "attach" else "python3 'a b.py'\n"))


def test_a_wrong_trace_is_one_sentence_and_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("report",), ("info",), ("export", "--to", "perfetto")):
        assert run(*words, str(tmp_path)) == 5
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("pytrace-ebpf: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize(("error", "code"), [(TargetError("x"), 3), (HostError("x"), 4), (KeyboardInterrupt(), 130)])
def test_errors_become_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pytrace_ebpf.open", fail)
    assert run("report", str(tmp_path)) == code
    assert capsys.readouterr().err == ("pytrace-ebpf: x\n" if isinstance(error, PytraceError) else "")


def test_top_and_compensate_say_what_they_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(sample(tmp_path / "sample"))
    assert run("report", trace, "--top", "-1") == 2
    assert "--top" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    trace = sample(tmp_path / "sample")
    command = [sys.executable, "-m", "pytrace_ebpf", "report", "--json", str(trace)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 128 + signal.SIGPIPE


def test_export_writes_beside_you_or_where_you_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sample(tmp_path / "sample")
    monkeypatch.chdir(tmp_path)
    for to, name in (("perfetto", "sample.perfetto-trace"), ("speedscope", "sample.speedscope.json"), ("folded", "sample.folded")):
        assert run("export", str(trace), "--to", to) == 0
        assert (tmp_path / name).stat().st_size > 500
    assert run("export", str(trace), "--to", "folded", "-o", "x") == 0 and (tmp_path / "x").exists()
    assert run("export", str(trace), "--to", "folded", "-o", "no/such/folder") == 2


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_that_fails_leaves_the_earlier_file(sampled: Path, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_trace: object, _args: object, out: BinaryIO) -> str:
        out.write(b"half of it")
        raise OSError(28, "No space left on device")

    (tmp_path / "out").write_text("good")
    monkeypatch.setattr(export, "_write", fail)
    assert run("export", str(sampled), "--to", to, "-o", str(tmp_path / "out")) == 2
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "good")]


@pytest.mark.parametrize(
    ("written", "size"), [("500", 500), ("1.5k", 1500), ("500M", 500_000_000), ("2MB", 2_000_000), ("20GiB", 20 << 30), ("1 TiB", 1 << 40)]
)
def test_sizes_are_decimal_unless_they_say_otherwise(written: str, size: int) -> None:
    from pytrace_ebpf.cli.attach import add_arguments

    options = argparse.ArgumentParser()
    add_arguments(options)
    assert options.parse_args(["--pid", "1", "--max-size", written]).max_size == size


@pytest.mark.parametrize("written", ["0", "-1", "many", "5 PB", "1e9", ""])
def test_what_is_no_size_is_refused(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("attach", "--pid", "1", f"--max-size={written}") == 2
    assert "is not a size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["attach", "1", "--when", "snap", "--keep", "30s"], ["attach", "1", "--trigger", "snap", "--retain", "30s"]),
        (["run", "--keep=2GiB", "--", "x"], ["run", "--retain=2GiB", "--", "x"]),
        (["attach", "1", "--when", "snap", "--trigger", "loop > 1s"], ["attach", "1", "--trigger", "snap", "--trigger", "loop > 1s"]),
        (["report", "x", "--to", "20ms"], ["report", "x", "--until", "20ms"]),
        (["trace", "--pid", "7"], ["request", "--pid", "7"]),
    ],
)
def test_what_options_and_commands_were_called_before_works_on_and_is_not_shown(words: list[str], same: list[str]) -> None:
    before, now = ({**vars(main.parser().parse_args(main.renamed(each)))} for each in (words, same))
    command, _ = now.pop("of_command"), before.pop("of_command")
    assert before == now
    gone = {word.partition("=")[0] for word in words} - {word.partition("=")[0] for word in same}
    shown = {option for action in command._actions for option in action.option_strings} | set(main.COMMANDS)
    assert not gone & shown and not any(re.search(rf"(?<!\w){option}\b", command.format_help()) for option in gone if option.startswith("-"))


def test_messages_name_options_as_they_are_called_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("attach", "1", "--when", "snapp") == 2 and "--trigger: " in capsys.readouterr().err
    assert run("trace", "--nope") == 2 and "pytrace-ebpf request" in capsys.readouterr().err
