"""What a thread was blocked by while it had a lock, against a slow look at every wait."""

import random

import numpy as np
import pandas as pd
import pytest

from pytrace_ebpf.analyze.findings.locks import _within


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_wait_within_a_hold_is_the_one_that_is_found(seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for thread in range(3):
        at = 0
        for _ in range(rng.randrange(9)):
            at += rng.randrange(5)
            ns = rng.randrange(1, 9)
            rows.append((thread, at, at + ns))
            at += ns
    rng.shuffle(rows)
    rows = rows or [(9, 0, 1)]
    waits = pd.DataFrame(rows, columns=["thread", "start_ns", "until_ns"])
    asked = [(rng.randrange(4), since := rng.randrange(40), since + rng.randrange(1, 30)) for _ in range(40)]
    of, since_ns, until_ns = (np.array(column, np.int64) for column in zip(*asked, strict=True))
    total, longest = _within(waits["thread"].to_numpy(np.int64), waits, of, since_ns, until_ns)
    for at, (thread, since, until) in enumerate(asked):
        # Of the one that goes on where the hold begins the part in it counts, of the last one all: it is not over.
        inside = {
            k: (min(end, until) - max(start, since), end - max(start, since))
            for k, (own, start, end) in enumerate(rows)
            if own == thread and start < until and end > since
        }
        assert total[at] == sum(cut for cut, _ in inside.values())
        assert (longest[at] == -1) == (not inside)
        assert not inside or inside[longest[at]][1] == max(ns for _, ns in inside.values())
