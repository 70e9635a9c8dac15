"""Objects that BPF read become values that the table can hold, whatever bytes they are."""

import numpy as np
import pytest

from pytrace_ebpf.patterns import Mains
from pytrace_ebpf.rebuild import decoding
from pytrace_ebpf.record.agent.values import _checked
from pytrace_ebpf.record.filters import Observed
from pytrace_ebpf.record.output.observed_rows import observed_table
from pytrace_ebpf.record.usdt.objects import DECIDED, NOT_OBSERVED, OBJECT_NAME, SECRET_RESULT, Objects
from pytrace_ebpf.trace.schema import OBSERVED

# struct object_event of probes/events.h
EVENT = np.dtype(
    [
        ("ts", "u8"), ("pid_tgid", "u8"), ("length", "i8"), ("func", "u4"), ("position", "u2"), ("type_length", "u2"), ("what", "u1"), ("kind", "u1"),
        ("status", "u1"), ("dtype", "u1"), ("width", "u1"), ("type_width", "u1"), ("pad", "u2"), ("type", "u1", (128,)), ("data", "u1", (640,)),
    ]
)  # fmt: skip
FUNCTION = np.dtype([("id", "u4"), ("observable", "u4"), ("file", "S512"), ("name", "S128"), ("qualname", "S256")])
TEXT = 6


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_values(seed: int) -> None:
    some = np.random.default_rng(seed)
    events = np.frombuffer(some.bytes(500 * EVENT.itemsize), EVENT).copy()
    events["width"], events["type_width"] = some.choice([0, 1, 2, 4], (2, len(events)))
    events["status"], events["kind"] = some.integers(0, 5, len(events)), some.integers(0, 12, len(events))
    events["position"] %= 16
    events["length"] >>= some.integers(0, 64, len(events))
    values, types, ends = decoding.objects(events)
    _checked(values)
    assert types.decode() is not None and (np.diff(ends) >= 0).all() and ends[-1] == len(types)
    who = {
        "ts": np.zeros(500, np.int64),
        **{name: np.zeros(500, np.int32) for name in ("pid", "tid")},
        "name": np.full(500, None),
        "type": np.full(500, None),
    }
    table = observed_table(OBSERVED, {**who, "record": values})
    table.validate(full=True)


def a_text(func: int, what: int, position: int, text: str) -> np.ndarray:
    event = np.zeros(1, EVENT)
    event["func"], event["what"], event["position"], event["kind"], event["length"] = func, what, position, TEXT, len(text)
    event["data"][0, : len(text)] = np.frombuffer(text.encode(), np.uint8)
    return event


def a_function(number: int, qualname: str) -> tuple[int, int, bytes, bytes, bytes]:
    return number, 1, b"/srv/shop.py", qualname.rpartition(".")[2].encode(), qualname.encode()


def test_what_is_read_before_it_is_decided_is_dropped_or_redacted_here() -> None:
    told: dict[int, int] = {}
    objects = Objects(Observed(("shop.Cart.*",)), told.__setitem__, False, Mains())
    objects.introduce(np.array([a_function(1, "Cart.login"), a_function(2, "Order.login"), a_function(3, "Cart.token")], FUNCTION))
    assert told == {2: DECIDED | NOT_OBSERVED}
    names = [a_text(func, OBJECT_NAME, position, name) for func in (1, 2, 3) for position, name in enumerate(("user", "Password"))]
    given = [a_text(func, what, position, f"{func} {position}") for func in (1, 2, 3) for what, position in ((0, 0), (0, 1), (0, 2), (1, 0))]
    columns, ids = objects.columns(np.concatenate([*names, *given]))
    rows = observed_table(OBSERVED, columns).to_pylist()
    seen = [(func, row["what"], row["name"], row["value"], row["status"]) for func, row in zip(ids.tolist(), rows, strict=True)]
    assert seen == [
        (1, "argument", "user", "1 0", "complete"),
        (1, "argument", "Password", None, "redacted"),
        (1, "argument", None, None, "redacted"),  # its name was lost
        (1, "return", None, "1 0", "complete"),
        (3, "argument", "user", "3 0", "complete"),
        (3, "argument", "Password", None, "redacted"),
        (3, "argument", None, None, "redacted"),
        (3, "return", None, None, "redacted"),
    ]
    beyond = 0xFFFF & ~0b11
    assert told == {1: DECIDED | 2 | beyond, 2: DECIDED | NOT_OBSERVED, 3: DECIDED | SECRET_RESULT | 2 | beyond}
