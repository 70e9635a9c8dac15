"""What `check` says of made-up traces: what is violated with place and path, and what cannot be known."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pytrace_ebpf.cli.main import main
from tests.unit.synthetic import NANOSLEEP, Script, table_of, write_trace

MS = 1_000_000
FUNCTIONS = [
    (0, "/srv/app.py", "<module>", "<module>", 1, "app"),
    (1, "/srv/app.py", "view", "view", 11, "app"),
    (2, "/srv/db.py", "execute", "Connection.execute", 21, "db"),
    (3, "/srv/app.py", "handler", "handler", 31, "app", 0x80),
    (4, "/srv/app.py", "load", "load", 41, "app"),
    (5, "/srv/auth.py", "login", "login", 51, "auth"),
]
MAIN, VIEW, EXECUTE, HANDLER, LOAD, LOGIN = range(6)
RUN = {"argv": ["pytrace-ebpf", "run", "--", "python3"], "scheduling": {"source": "bpf", "why": ""}}


def written(path: Path, *scripts: Script, **more: Any) -> Path:
    manifest = RUN | more.pop("manifest", {})
    return write_trace(
        path, events=[row for script in scripts for row in script.events],
        sched=sorted((row for script in scripts for row in script.sched), key=lambda row: row[0]), functions=FUNCTIONS, manifest=manifest, **more,
    )  # fmt: skip


def checked(capsys: pytest.CaptureFixture[str], trace: Path, code: int, *rules: str, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `check --json` says of each rule, by its text."""
    file = trace.parent / "rules.toml"
    file.write_text("[rules]\n" + "".join(f'r{number} = "{rule}"\n' for number, rule in enumerate(rules)))
    assert main(["check", str(trace), "--rules", str(file), "--json", *words]) == code
    return {rule["text"]: rule for rule in json.loads(capsys.readouterr().out)["rules"]}


def page() -> Script:
    """A view with three statements, then one with one; a coroutine that waits in `load`, and waits again in another resume."""
    script = Script(7, 7).snapshot().enter(MAIN)
    for statements in (3, 1):
        script.enter(VIEW)
        for _ in range(statements):
            script.enter(EXECUTE).run(MS).leave()
        script.leave()
    script.enter(HANDLER).enter(LOAD).wait(20 * MS, syscall=NANOSLEEP).leave().run(MS).leave()
    return script.enter(LOAD).wait(30 * MS).leave().leave()


def test_what_is_violated_is_said_with_place_and_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path / "trace", page())
    found = checked(
        capsys, trace, 1, "at most 2 execute in one view", "no wait above 10ms in a coroutine", "never load within view", "execute only from app",
        "execute only from auth", "view takes at most 2ms", "load takes at most 1ms blocked", "logn before view",
    )  # fmt: skip
    states = {text: rule["state"] for text, rule in found.items()}
    assert list(states.values()) == ["violated", "violated", "holds", "holds", "violated", "violated", "violated", "violated"]
    (most,) = found["at most 2 execute in one view"]["found"]
    assert (most["count"], most["value"], most["path"], most["call_id"]) == (1, 3, ["<module>", "view"], 1)
    assert most["sentence"] == "`view` has more than 2 calls of execute within it once, the most 3, of app.py:11, in process 7, thread 7."
    (wait,) = found["no wait above 10ms in a coroutine"]["found"]
    assert (wait["count"], wait["value"], wait["function"], wait["path"]) == (1, 20 * MS, "load", ["<module>", "handler", "load"])
    (outside,) = found["execute only from auth"]["found"]
    assert (outside["count"], outside["caller_file"], outside["call_line"]) == (4, "/srv/app.py", 21)
    assert "is called 4 times by `view`, which is not of auth" in outside["sentence"]
    assert {row["count"] for row in found["load takes at most 1ms blocked"]["found"]} == {1} and found["view takes at most 2ms"]["violations"] == 1
    assert found["logn before view"]["violations"] == 2
    assert found["logn before view"]["notes"] == ["no function that was called fits `logn`; the nearest names: login"]


def test_a_function_that_calls_itself_is_one_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(7, 7).enter(MAIN).enter(LOAD).enter(LOAD).enter(LOAD).run(MS).leave().leave().leave().leave()
    (row,) = checked(capsys, written(tmp_path / "trace", script), 1, "never load")["never load"]["found"]
    assert (row["count"], row["path"]) == (3, ["<module>", "load"])


def test_all_lists_each_call_and_text_folds_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path / "trace", page())
    found = checked(capsys, trace, 1, "never execute", words=("--all",))["never execute"]
    assert [row["count"] for row in found["found"]] == [1, 1, 1, 1] and found["violations"] == 4
    assert main(["check", str(trace), "--rules", str(tmp_path / "rules.toml")]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "violated  r0: never execute",
        "          `Connection.execute` is called 4 times, first called at app.py:21, in process 7, thread 7.",
        "            <module> > view > Connection.execute",
        "Of 1 rule 1 is violated.",
    ]


def test_threads_are_one_path_and_a_process_is_more_than_a_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Script(7, 7).enter(LOGIN).run(MS).leave()
    two = Script(7, 8, now=one.now + MS).enter(VIEW).run(MS).leave()
    three = Script(7, 9, now=two.now + MS).enter(VIEW).run(MS).leave()
    trace = written(tmp_path / "trace", one, two, three, cuts=(two.now,))
    found = checked(
        capsys, trace, 1, "login before view", "login before view in the same process", "every login then view within 2ms in the same process"
    )
    assert [rule["state"] for rule in found.values()] == ["violated", "holds", "holds"]
    (row,) = found["login before view"]["found"]
    assert (row["count"], row["tid"]) == (2, 8)


UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    ("never load within view", {"losses": [("call_ring", 5, 6, 3)]}, "3 events of calls were lost"),
    ("never load within view", {"manifest": {"options": {"filters": {"include": ["app"], "exclude": []}}}}, "it was recorded with --include app"),
    ("execute only within login", {"manifest": {"options": {"filters": {"exclude": ["auth"]}}}}, "1 cannot be judged: events were lost or left out"),
    ("view only from login", {"manifest": {"options": {"filters": {"max_depth": 9}}}}, "it was recorded with --max-depth 9"),
    ("app only from login", {"manifest": {"argv": ["pytrace-ebpf", "attach"]}}, "1 cannot be judged: what called them began before the recording"),
    ("never time.sleep", {}, "`time.sleep` may be written in C, which is recorded with --c-calls alone"),
    ("never aten::item within view", {}, "`aten::item` may be an operator"),
    (
        "no wait above 1s in a coroutine",
        {"manifest": {"scheduling": {"source": "perf", "why": ""}}},
        "what threads waited for was not recorded by eBPF",
    ),
    ("view raises only KeyError", {}, "that an exception left a call is recorded by the agent alone"),
    (
        "execute before view",
        {"manifest": {"argv": ["pytrace-ebpf", "attach"]}},
        "1 cannot be judged: what was called before the recording began is not known",
    ),
    ("every load then login within 1s", {}, "1 cannot be judged: the recording ended before the time for it was over"),
    ("view gets n in 1..2", {"manifest": {"sources": [{"pid": 7, "source": "agent", "why": ""}]}}, "what they were given as n (--args)"),
]


@pytest.mark.parametrize(("rule", "more", "why"), UNKNOWN)
def test_what_cannot_be_known_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str, more: dict[str, Any], why: str) -> None:
    script = Script(7, 7).enter(MAIN).enter(VIEW).enter(EXECUTE).run(MS).leave().leave().enter(LOAD).run(MS).leave().leave()
    found = checked(capsys, written(tmp_path / "trace", script, **more), 6, rule)[rule]
    assert found["state"] == "unknown" and any(why in each for each in found["unknown"]), found


def test_what_was_left_out_for_a_time_makes_a_rule_about_it_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path / "trace", page())
    (trace / "left_out").mkdir()
    pq.write_table(table_of("left_out", [(LOGIN, 5, None, 1.0, "budget")]), trace / "left_out" / "part-00000.parquet")
    manifest = json.loads((trace / "manifest.json").read_text())
    manifest["segments"][0]["rows"]["left_out"] = 1
    (trace / "manifest.json").write_text(json.dumps(manifest))
    found = checked(capsys, trace, 6, "never login", "never load within view")
    assert found["never login"]["unknown"] == ["1 function was left out for a time to bound the cost of tracing"]
    assert found["never load within view"]["state"] == "holds"


def test_a_trace_of_samples_knows_of_no_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "trace", functions=FUNCTIONS, end_ns=10)
    assert checked(capsys, trace, 6, "never view")["never view"]["unknown"] == ["no call was recorded"]


def test_values_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, values = Script(7, 7).enter(MAIN), []
    for type_, value in (("int", "3"), ("int", "30"), ("str", "x"), ("list", None)):
        values.append((script.now, 7, 7, "argument", 0, "n", type_, value, None, None, "complete"))
        script.enter(VIEW).run(MS).leave()
    trace = written(tmp_path / "trace", script.leave(), observed=values, manifest={"sources": [{"pid": 7, "source": "agent", "why": ""}]})
    found = checked(capsys, trace, 1, "view gets n in 1..10", "view gets n of type int", "view gets n matching '*'")
    assert [(rule["state"], rule["violations"]) for rule in found.values()] == [("violated", 2), ("violated", 2), ("unknown", 0)]


def test_a_window_is_judged_by_what_lies_within_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path / "trace", page())
    found = checked(capsys, trace, 1, "never execute", "at most 2 execute in one view", words=("--from", "0.0031"))
    assert found["never execute"]["violations"] == 1 and found["at most 2 execute in one view"]["state"] == "holds"


def test_options_that_make_no_sense_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(written(tmp_path / "trace", page()))
    assert main(["check", trace]) == 2 and "--rules is missing: name a file of rules, or one of asyncio" in capsys.readouterr().err
    assert main(["check", trace, "--rules", "asyncio", "--top", "-1"]) == 2
    assert main(["check", str(tmp_path), "--rules", "asyncio"]) == 5
