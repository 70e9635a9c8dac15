"""Files of rules against real programs: one that breaks them, and one that only looks so."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytrace_ebpf.cli.main import main
from tests.conftest import TARGETS

OWN = """
[rules]
price = "ruled.price gets n in 0.."
raises = "ruled.price raises only ValueError"
from = "ruled.price only from ruled"
commit = "every 'Session.commit' then page within 10s"
"""
BROKEN = {"loop-waits", "loop-sleeps", "sleep-under-a-lock", "lazy-in-a-loop", "raises"}


@pytest.mark.parametrize("does", ["wrong", "right"])
def test_what_breaks_the_rules_is_found_and_no_more(
    run: Callable[..., tuple[Path, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], does: str
) -> None:
    directory, ended = run(
        [sys.executable, str(TARGETS / "ruled.py"), does], "-q", "--source", "agent", "--c-calls", "--args", "ruled.price", "--request", "ruled:page"
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["30"]), ended.stderr
    own = tmp_path / "rules.toml"
    own.write_text(OWN)
    capsys.readouterr()
    assert (
        main(["check", str(directory), "--json", *(word for rules in ("asyncio", "threads", "sqlalchemy", str(own)) for word in ("--rules", rules))])
        == 1
    )
    rules = {rule["rule"]: rule for rule in json.loads(capsys.readouterr().out)["rules"]}
    violated = {name for name, rule in rules.items() if rule["state"] == "violated"}
    late = {"loop-held"} if does == "wrong" else set()  # where others want the cores the loop may be held for as long as that
    assert violated - late == {"price"} | (BROKEN if does == "wrong" else set()), rules
    assert all(rule["state"] == "unknown" for rule in rules.values() if " while a lock is held" in rule["text"] and rule["rule"] not in violated)
    assert {name for name, rule in rules.items() if rule["state"] == "unknown" and "lock" not in rule["text"]} == set(), rules
    if does == "wrong":
        (slept,) = rules["sleep-under-a-lock"]["found"]
        assert slept["path"][-2:] == ["write", "time.sleep"] and slept["value"] > 20e6
        assert rules["lazy-in-a-loop"]["found"][0]["value"] == 15 and rules["lazy-in-a-loop"]["found"][0]["path"][-1] == "page"
        sleeps = rules["loop-sleeps"]["found"]
        assert [(row["count"], row["caller_file"], row["path"][-2:]) for row in sleeps] == [(2, str(TARGETS / "ruled.py"), ["fetch", "time.sleep"])]
