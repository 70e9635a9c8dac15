"""Values that the BPF programs of one interpreter read: which functions they are of, under which names, and which are kept.

A function that may be observed (usdt/matching.py) is read from its first call on, until it is looked at here: then the programs are
told, and what they read meanwhile of functions that are not observed, or under names that are redacted, goes no further.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.patterns import Mains
from pytrace_ebpf.rebuild import decoding
from pytrace_ebpf.record.cpython.functions import module_of
from pytrace_ebpf.record.filters import Observed
from pytrace_ebpf.record.output.observed_rows import OTHER, REDACTED
from pytrace_ebpf.record.output.tables import Columns, when_and_who
from pytrace_ebpf.trace.observed import WHATS

# probes/events.h and usdt_values.h
OBJECT_NAME, MOST_OBSERVED = 4, 16
DECIDED, NOT_OBSERVED, SECRET_RESULT = 1 << 63, 1 << 62, 1 << 61
_ARGUMENT = WHATS.index("argument")
_SLOTS = MOST_OBSERVED + 1  # of a function: its arguments, and what leaves it


class Objects:
    """Of the programs of one interpreter."""

    def __init__(self, observed: Observed, decide: Callable[[int, int], None], is_bare: bool, mains: Mains) -> None:
        """`decide(id, decision)` tells the programs; `is_bare`: code objects do not know their class."""
        self._observed, self._decide, self._is_bare, self._mains = observed, decide, is_bare, mains
        self._wanted: dict[int, bool] = {}  # by the programs' id, of the function's name: whether its result is secret
        self._asked: set[int] = set()  # functions of which the programs know
        self._names: dict[int, str] = {}  # of arguments, by _SLOTS * id + position

    def introduce(self, functions: np.ndarray) -> None:
        """Take in function_event records."""
        for row in functions[functions["observable"] == 1]:  # one step per function, not per call
            file, name, qualname = (_text(row[field]) for field in ("file", "name", "qualname"))
            is_bare = self._is_bare or not qualname.endswith(name)
            if self._observed.wants(file, module_of(file), name if is_bare else qualname, self._mains.have(file), is_bare):
                self._wanted[int(row["id"])] = self._observed.hides(name)
            else:
                self._decide(int(row["id"]), DECIDED | NOT_OBSERVED)

    def columns(self, events: np.ndarray) -> tuple[Columns, np.ndarray]:
        """Columns of `observed`, their values as `record`, of object_event records (C-contiguous) whose functions were introduced; and their ids."""
        values, types, ends = decoding.objects(events)
        self._learn(events["what"] == OBJECT_NAME, events["func"], values)
        wanted = (events["what"] != OBJECT_NAME) & np.isin(events["func"], np.fromiter(self._wanted, np.uint32, len(self._wanted)))
        events, values = events[wanted], values[wanted]
        names, secret = self._named(events)
        values["status"][secret] = REDACTED
        values["kind"][secret] = OTHER
        values["length"][secret] = values["size"][secret] = 0
        return {**when_and_who(events), "name": names, "type": _types(types, ends)[wanted], "record": values}, events["func"]

    def _learn(self, is_name: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        """Take in names of arguments, and tell the programs which of them to redact."""
        if not is_name.any():
            return
        ids, values = ids[is_name], np.ascontiguousarray(values[is_name])
        text, ends, _ = decoding.value_texts(values)
        start = 0
        for func, position, end in zip(ids.tolist(), values["position"].tolist(), ends.tolist(), strict=True):  # one step per argument of a function
            self._names[_SLOTS * func + position] = text[start:end].decode()
            start = end
        for func in np.unique(ids).tolist():
            if func in self._wanted:
                hidden = sum(1 << at for at in range(MOST_OBSERVED) if self._is_hidden(func, at))
                self._decide(func, DECIDED | hidden | (SECRET_RESULT if self._wanted[func] else 0))

    def _is_hidden(self, func: int, position: int) -> bool:
        """Also where its name is not known."""
        name = self._names.get(_SLOTS * func + position)
        return not name or self._observed.hides(name)

    def _named(self, events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The names of arguments, else None; and what is to be redacted."""
        is_argument = events["what"] == _ARGUMENT
        slots, of = np.unique(
            events["func"].astype(np.int64) * _SLOTS + np.where(is_argument, events["position"], MOST_OBSERVED), return_inverse=True
        )
        names = np.full(len(slots), None, object)
        hidden = np.zeros(len(slots), np.bool_)
        for at, slot in enumerate(slots.tolist()):  # one step per argument of a function
            func, position = divmod(slot, _SLOTS)
            names[at] = self._names.get(slot)
            hidden[at] = self._wanted[func] if position == MOST_OBSERVED else self._is_hidden(func, position)
        return names[of], hidden[of]


def _types(text: bytes, ends: np.ndarray) -> np.ndarray:
    """The names of types as objects; None where there is none."""
    offsets = np.concatenate(([0], ends))
    encoded = pa.Array.from_buffers(pa.large_string(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)]).dictionary_encode()
    words = np.array([word or None for word in encoded.dictionary.to_pylist()] or [None], object)
    return words[encoded.indices.to_numpy()]


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
