"""Which source is chosen, and how that is explained, from what was measured of a process."""

import os
from dataclasses import replace
from typing import Any

import pytest

from pytrace_ebpf.errors import TargetError
from pytrace_ebpf.record.cpython.layout import layout_for
from pytrace_ebpf.record.filters import Filters
from pytrace_ebpf.record.process.target import Target, inspect
from pytrace_ebpf.record.source_selection.cost_estimate import CostEstimate
from pytrace_ebpf.record.source_selection.price import expected_ns
from pytrace_ebpf.record.source_selection.selection import Seen, announced, choose

PROBES = ("function__entry", "function__return", "line")
CHEAP = CostEstimate(1, 0.001, None, 0.02)
DEAR = CostEstimate(1, 0.9, None, 17.1)
COUNTED = CostEstimate(1, 0.9, 1_000_000, 2.45)
PRICE = lambda source, target: expected_ns(source, target.python_version)  # noqa: E731
FILTERED = "process 1 has a seccomp filter"


def python(*version: int, probes: tuple[str, ...] = PROBES) -> Target:
    """This process, as if it were such a CPython."""
    own = inspect(os.getpid())
    binary = replace(own.binary, probes=dict.fromkeys(probes, ()))
    return replace(own, python_version=version, binary=binary, layout=layout_for(version), free_threaded=False, jit=False)


def test_cheap_probes_are_chosen() -> None:
    choice = choose(python(3, 11, 2), "auto", launched=False, seen=Seen(estimate=CHEAP))
    assert (choice.source, choice.warning) == ("usdt", "")


@pytest.mark.parametrize(("version", "estimate"), [((3, 11, 2), DEAR), ((3, 9, 2), COUNTED)])
def test_expensive_probes_give_way_to_the_agent(version: tuple[int, ...], estimate: CostEstimate) -> None:
    choice = choose(python(*version), "auto", launched=False, seen=Seen(estimate=estimate))
    assert choice.source == "agent"
    assert f"{estimate.share * 100:,.0f} %" in choice.why


def test_where_the_agent_is_barred_the_probes_are_used_with_a_warning() -> None:
    choice = choose(python(3, 11, 2), "auto", launched=False, seen=Seen(estimate=DEAR, cannot_inject=FILTERED))
    assert choice.source == "usdt"
    assert "1,710 %" in choice.warning
    assert FILTERED in choice.warning


@pytest.mark.parametrize(("asked", "option"), [({"c_calls": True}, "--c-calls"), ({"max_depth": 3}, "--max-depth"), ({"lines": "exact"}, "--lines")])
def test_what_the_agent_alone_can_record_is_recorded_by_it_however_cheap_probes_are(asked: dict[str, Any], option: str) -> None:
    alone = Filters(**asked).agents_alone
    for estimate in (CHEAP, None):
        choice = choose(python(3, 11, 2), "auto", launched=False, seen=Seen(estimate=estimate), alone=alone)
        assert (choice.source, choice.why) == ("agent", f"only the agent records what {option} asks for")
    with pytest.raises(TargetError, match=f"what {option} asks for, and {FILTERED}; --source agent injects it nevertheless"):
        choose(python(3, 11, 2), "auto", launched=False, seen=Seen(estimate=CHEAP, cannot_inject=FILTERED), alone=alone)


def test_requested_probes_are_used_whatever_they_cost() -> None:
    choice = choose(python(3, 11, 2), "usdt", launched=False, seen=Seen(estimate=DEAR))
    assert choice.source == "usdt"
    assert "1,710 %" in choice.warning


def test_a_requested_agent_is_injected_with_a_warning() -> None:
    choice = choose(python(3, 13, 0, probes=()), "agent", launched=False, seen=Seen(cannot_inject=FILTERED))
    assert choice.source == "agent"
    assert FILTERED in choice.warning


def test_without_probes_and_with_a_filter_no_source_is_chosen() -> None:
    with pytest.raises(TargetError, match=f"{FILTERED}; --source agent injects the agent nevertheless"):
        choose(python(3, 13, 0, probes=()), "auto", launched=False, seen=Seen(cannot_inject=FILTERED))
    assert choose(python(3, 13, 0, probes=()), "auto", launched=True, seen=Seen(cannot_inject=FILTERED)).source == "agent"


def test_names_that_cannot_be_encoded_forbid_the_probes() -> None:
    seen = Seen(unencodable=r"'/x-\udcff/a.py'", estimate=CHEAP)
    for launched in (False, True):
        assert choose(python(3, 11, 2), "auto", launched, seen).source == "agent"
        with pytest.raises(TargetError, match=r"'/x-\\udcff/a.py'.*; use --source agent") as error:
            choose(python(3, 11, 2), "usdt", launched, seen)
        assert "\n" not in str(error.value)


def test_the_first_line_has_source_reason_cost_estimate_and_alternative() -> None:
    target, seen = python(3, 11, 2), Seen(estimate=CHEAP)
    line = announced(target, choose(target, "auto", launched=False, seen=seen), seen, PRICE)
    assert line.startswith("usdt: CPython 3.11.2 fires")
    assert "about 3.0 µs a call, expected to take 2 % of a core in process 1, the busiest that belongs to it" in line
    assert line.endswith("--source agent: 0.31 µs a call, from inside")
    target, seen = python(3, 9, 2), Seen(estimate=COUNTED)
    line = announced(target, choose(target, "auto", launched=False, seen=seen), seen, PRICE)
    assert line.startswith("agent: the probes, which trace from outside, would cost about 245 %")
    assert "about 0.31 µs a call, expected to take 31 % of a core" in line
    assert line.endswith("--source usdt: 2.5 µs a call, from outside")


def test_an_alternative_that_does_not_serve_is_not_named() -> None:
    target, seen = python(3, 13, 0, probes=()), Seen()
    assert "--source usdt" not in announced(target, choose(target, "auto", launched=False, seen=seen), seen, PRICE)
    target, seen = python(3, 11, 2), Seen(unencodable="'x'")
    assert "--source usdt" not in announced(target, choose(target, "auto", launched=False, seen=seen), seen, PRICE)
