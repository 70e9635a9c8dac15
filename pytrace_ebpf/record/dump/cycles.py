"""Cycles of who waits for whom."""

from collections.abc import Mapping, Sequence


def cycles(waits: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """One cycle of each group of those that wait for each other; `waits`: for all of whom each waits."""
    left, behind = {one: {other for other in others if other in waits} for one, others in waits.items()}, dict[int, list[int]]()
    for one, others in left.items():
        for other in others:
            behind.setdefault(other, []).append(one)
    free = [one for one, others in left.items() if not others]
    while free:
        for one in behind.get(ended := free.pop(), ()):
            left[one].remove(ended)
            if not left[one]:
                free.append(one)
    left = {one: others for one, others in left.items() if others}
    found, seen = list[list[int]](), set[int]()
    for one in sorted(left):
        path = list[int]()
        while one not in seen:
            seen.add(one)
            path.append(one)
            one = min(left[one])
        if one in path:
            cycle = path[path.index(one) :]
            at = cycle.index(min(cycle))
            found.append(cycle[at:] + cycle[:at])
    return found
