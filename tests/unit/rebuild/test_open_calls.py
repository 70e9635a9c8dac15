"""Which calls are open while a trace is recorded, as threads come and end."""

import numpy as np

from pytrace_ebpf.rebuild.stacks import Stacks
from pytrace_ebpf.trace.schema import CallKind
from tests.unit.synthetic import table_of

PID, THREADS = 40, 1000


def test_threads_that_ended_are_forgotten_and_no_others() -> None:
    stacks, tids = Stacks(), list(range(THREADS))
    stacks.take(table_of("events", [(tid, PID, tid, CallKind.ENTRY, func, 16 * func, tid + func) for tid in tids for func in (1, 2)]))
    ended = [tid for tid in tids if tid % 3] + [THREADS + 5]  # of the last no event came
    stacks.forget(np.full(len(ended), PID), np.array(ended))
    left = [tid for tid in tids if tid % 3 == 0]
    stacks.take(table_of("events", [(2000, PID, left[-1], CallKind.RETURN, 2, 32, 1), (2001, PID, 1, CallKind.ENTRY, 3, 48, 1)]))
    found = stacks.open_calls()
    expected = [(tid, func) for tid in left for func in (1, 2)]
    expected = [*expected[:-1], (1, 3)]
    assert sorted(zip(found["tid"].tolist(), found["func_id"].tolist(), strict=True)) == sorted(expected)
    assert found["pid"].tolist() == [PID] * len(expected)
    assert {(tid, line - func) for tid, func, line in zip(*(found[name].tolist() for name in ("tid", "func_id", "line")), strict=True)} == {
        *((tid, tid) for tid in left),
        (1, -2),  # the one that was entered in line 1
    }
