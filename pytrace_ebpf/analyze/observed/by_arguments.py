"""With which types, shapes and values of arguments functions were called, what came of it, and what these calls cost.

Calls are distinguished by the types of their arguments, and by values and sizes as long as a function has few different ones of an argument. Memory
is bounded by that, a segment, and what is open.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.analyze.observed.texts import Texts, texts
from pytrace_ebpf.derive.calls.observed import Joined, ObservedSink
from pytrace_ebpf.derive.one_pass import run
from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.states import SPLIT

FEW = 8  # different values, or sizes, of an argument: where a function has more, they are not distinguished
MOST_ROWS = 256  # of a function: where there would be more, only types are distinguished
RESUMED, UNSEEN, OTHERS = "(resumed)", "(not seen)", "(others)"  # in the place of arguments

_COLUMNS = ("func_id", "start_ns", "resumed", "wall_ns", *SPLIT, "self_wall_ns")
_SUMS = ("count", "wall_ns", "self_ns", "unknown_ns", *SPLIT, *(f"{name}_known" for name in SPLIT))
_MOST_PLACES = 1 << 16  # of arguments, and of what came of the call

Ints = npt.NDArray[np.int64]
Key = tuple[tuple[str, str], ...]  # what came of the call and the arguments: each as it is distinguished, and by its type alone


def by_arguments(trace: Trace) -> pd.DataFrame:
    """One row per function, arguments and outcome, the most wall time first.

    func_id; arguments and outcome as texts; count; wall_ns, its SPLIT and unknown_ns (of calls whose scheduling is not known), summed over these calls,
    those within another of them too; each_ns, wall_ns by count; self_ns. A part is null where it is not known of a call whose time on a core is.
    """
    sink = _ByArguments(trace)
    run(trace, sink)
    rows = [(func_id, *_told(key), *sums.tolist()) for func_id, function in sink.functions.items() for key, sums in function.rows.items()]
    table = pd.DataFrame(rows, columns=["func_id", "arguments", "outcome", *_SUMS]).astype(dict.fromkeys(_SUMS, np.int64))
    on_cpu = table["on_cpu_ns_known"]
    for name in SPLIT:
        table[name] = table[name].astype("Int64").where((on_cpu > 0) & (table[f"{name}_known"] == on_cpu))
    table["each_ns"] = table["wall_ns"] // table["count"].clip(lower=1)
    table = table[["func_id", "arguments", "outcome", "count", "wall_ns", "each_ns", *SPLIT, "unknown_ns", "self_ns"]]
    return table.sort_values(["wall_ns", "count"], ascending=False, kind="stable", ignore_index=True)


class _ByArguments(ObservedSink):
    columns = _COLUMNS

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.functions: dict[int, _Function] = {}

    def found(self, joined: Joined) -> None:
        for func_id, key, sums in _of_piece(joined, self.functions, self.trace.start_ns):
            self.functions[func_id].add(key, sums)


class _Function:
    """The rows of one function: sums by what its calls were given and what came of them."""

    def __init__(self) -> None:
        self.rows: dict[Key, Ints] = {}
        self.takes_arguments = False
        self.many: set[int] = set()  # places in a key that are no longer distinguished
        self._few: dict[int, set[str]] = {}

    def add(self, key: Key, sums: Ints) -> None:
        """Take in the sums of some calls."""
        self._put(key, sums)
        for place, (shown, _) in enumerate(key):
            if place not in self.many:
                few = self._few.setdefault(place, set())
                few.add(shown)
                if len(few) > FEW:
                    self.generalize({place})
        if len(self.rows) > MOST_ROWS:
            self.generalize(set(range(_MOST_PLACES)))
        if len(self.rows) > MOST_ROWS:
            self.rows = {(("", ""), (OTHERS, OTHERS)): np.sum(list(self.rows.values()), axis=0)}

    def generalize(self, places: set[int]) -> None:
        """Tell what is in these places apart by its type alone from now on, and what was there before."""
        self.many |= places
        rows, self.rows = self.rows, {}
        for key, sums in rows.items():
            self._put(key, sums)

    def _put(self, key: Key, sums: Ints) -> None:
        key = tuple((whole, whole) if place in self.many else (shown, whole) for place, (shown, whole) in enumerate(key))
        self.rows[key] = self.rows[key] + sums if key in self.rows else sums


def _of_piece(piece: Joined, functions: dict[int, _Function], start_ns: int) -> Iterator[tuple[int, Key, Ints]]:
    """(func_id, key, sums) of the calls that are distinguished."""
    func = piece.calls["func_id"].to_numpy().astype(np.int64)
    place = piece.values["position"].to_numpy().astype(np.int64) + 1  # 0: what came of it
    shown, whole = texts(piece.values)
    many = _many(func[piece.call], place, shown.codes, functions)
    codes = np.where(many, ~whole.codes, shown.codes)
    instead = _instead(piece, func, place, functions, start_ns)
    group = _groups(func, instead, piece.call, place, codes)
    sums = _sums(piece.calls, group)
    first = np.unique(group, return_index=True)[1]
    begin, end = (np.searchsorted(piece.call, first, side) for side in ("left", "right"))
    for number, call in enumerate(first.tolist()):
        rows = range(int(begin[number]), int(end[number]))
        key = {int(place[row]): _words(int(codes[row]), int(whole.codes[row]), shown, whole) for row in rows}
        key.setdefault(0, ("", ""))
        if instead[call]:
            key[1] = (instead[call], instead[call])
        yield int(func[call]), tuple(words for _, words in sorted(key.items())), sums[number]


def _many(func: Ints, place: Ints, shown: Ints, functions: dict[int, _Function]) -> npt.NDArray[np.bool_]:
    """Which rows are of an argument of which the function has many different values, in the piece or before."""
    cell, cells = pd.factorize(func * _MOST_PLACES + place)
    distinct = pd.DataFrame({"cell": cell, "shown": shown}).drop_duplicates()
    many = np.bincount(distinct["cell"], minlength=len(cells)) > FEW
    for number, of in enumerate(cells.tolist()):
        function = functions.setdefault(of // _MOST_PLACES, _Function())
        if many[number]:
            function.generalize({of % _MOST_PLACES})
        many[number] = of % _MOST_PLACES in function.many
    return many[cell]


def _instead(piece: Joined, func: Ints, place: Ints, functions: dict[int, _Function], start_ns: int) -> npt.NDArray[np.object_]:
    """What stands for the arguments of calls of which there are none: "" where the function takes none."""
    has = np.zeros(len(piece.calls), np.bool_)
    has[piece.call[place > 0]] = True
    for of in np.unique(func[has]).tolist():
        functions[of].takes_arguments = True
    takes = np.isin(func, [of for of in np.unique(func).tolist() if functions[of].takes_arguments])
    resumed = piece.calls["resumed"].to_numpy(zero_copy_only=False).astype(bool)
    unseen = takes | (piece.calls["start_ns"].to_numpy() <= start_ns)  # else they were lost
    return np.where(has, "", np.where(resumed, RESUMED, np.where(unseen, UNSEEN, ""))).astype(object)


def _groups(func: Ints, instead: npt.NDArray[np.object_], call: Ints, place: Ints, codes: Ints) -> Ints:
    """The number of each call's group: of the same function, and the same codes in all places."""
    group = pd.factorize(func * 4 + pd.factorize(instead)[0])[0].astype(np.int64)
    least, width = int(codes.min(initial=0)) - 1, int(codes.max(initial=0)) - int(codes.min(initial=0)) + 2
    for of in np.unique(place).tolist():
        rows = place == of
        column = np.full(len(func), least, np.int64)
        column[call[rows]] = codes[rows]
        group = pd.factorize(group * width + (column - least))[0].astype(np.int64)
    return group


def _sums(calls: pa.Table, group: Ints) -> Ints:
    """_SUMS by group, shape (groups, len(_SUMS))."""
    parts = {name: calls[name].fill_null(0).to_numpy() for name in SPLIT}
    known = {name: calls[name].is_valid().to_numpy().astype(np.int64) for name in SPLIT}
    wall, own = (calls[name].to_numpy() for name in ("wall_ns", "self_wall_ns"))
    unknown = np.where(known["on_cpu_ns"] > 0, 0, wall)
    columns = [np.ones(len(wall), np.int64), wall, own, unknown, *parts.values(), *known.values()]
    out = np.zeros((int(group.max(initial=-1)) + 1, len(columns)), np.int64)
    for number, column in enumerate(columns):
        np.add.at(out[:, number], group, column)
    return out


def _words(code: int, whole_code: int, shown: Texts, whole: Texts) -> tuple[str, str]:
    return whole.words[whole_code] if code < 0 else shown.words[code], whole.words[whole_code]


def _told(key: Key) -> tuple[str, str]:
    (outcome, _), *arguments = key
    return ", ".join(shown for shown, _ in arguments), outcome
