"""Manifests in which something is other than it was: shown, or refused in a sentence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytrace_ebpf.trace.schema import MANIFEST
from tests.fuzz import found
from tests.fuzz.reading import try_commands
from tests.unit.synthetic import sample

EXAMPLES = int(os.environ.get("PYTRACE_FUZZ", "40"))
numbers = st.integers() | st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400]) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3), max_leaves=6)
# Where: at each level one of the keys or places that are there, by number. What: a value, or "gone", "twice".
changes = st.tuples(
    st.lists(st.integers(0, 20), min_size=1, max_size=5),
    st.one_of(st.tuples(st.just("is"), values), st.just(("gone", None)), st.just(("twice", None))),
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = sample(tmp_path_factory.mktemp("fuzz") / "trace")
    (path / "good.json").write_text((path / MANIFEST).read_text())
    return path


@pytest.fixture(autouse=True)
def nothing_is_hushed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRACE_DEBUG", "1")


def changed(manifest: Any, where: list[int], how: str, value: Any) -> None:
    """Change one place of it."""
    place, key = manifest, None
    for number in where:
        below = place if key is None else place[key]
        if not isinstance(below, dict | list) or not below:
            break
        place = below
        key = list(place)[number % len(place)] if isinstance(place, dict) else number % len(place)
    if how == "is":
        place[key] = value
    elif how == "gone":
        del place[key]
    elif isinstance(place, list):
        place.append(place[key])


def check(trace: Path, several: list[Any]) -> None:
    manifest = json.loads((trace / "good.json").read_text())
    for where, (how, value) in several:
        changed(manifest, where, how, value)
    (trace / MANIFEST).write_text(json.dumps(manifest))
    try_commands(trace, 2)


@settings(max_examples=EXAMPLES, deadline=None, derandomize="PYTRACE_FUZZ" not in os.environ, suppress_health_check=list(HealthCheck))
@given(st.lists(changes, min_size=1, max_size=3))
def test_a_changed_manifest_is_shown_or_refused(trace: Path, several: list[Any]) -> None:
    check(trace, several)


@pytest.mark.parametrize("several", found("manifests"))
def test_what_was_found_in_manifests(trace: Path, several: list[Any]) -> None:
    check(trace, several)
