"""Shapes and element types of many calls: each distinct value is stored once and a call refers to it by number."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pytrace_ebpf.derive.store import State
from pytrace_ebpf.trace.schema import OPERATORS
from pytrace_ebpf.trace.streams.layers import ARGUMENTS

UNREAD = -1
_WAITING = "waiting"
_STATE = ARGUMENTS.arrow.append(pa.field("asked", pa.int8()))
_LONG = 2  # parts
KEY = ["pid", "tid", "func_id", "ts"]
_SHAPES, _DTYPES = OPERATORS.arrow.field("shapes").type, OPERATORS.arrow.field("dtypes").type

Ints = npt.NDArray[np.int64]


class Tensors:
    """The rows of schema.ARGUMENTS, added part by part. A row takes 30 bytes, however many tensors it has, and is kept until its call has been
    asked for and then two parts were added: another call of the same moment may come later, but not by more.

    `shapes` and `dtypes` hold each distinct value once: a tuple with the sizes, or the name, of each tensor, None where it is undefined.
    """

    def __init__(self) -> None:
        self.shapes: list[tuple[tuple[int, ...] | None, ...]] = []
        self.dtypes: list[tuple[str | None, ...]] = []
        self._number: dict[Hashable, int] = {}
        self._rows: dict[bool, list[pd.DataFrame]] = {False: [], True: []}
        self._joined: set[bool] = set()

    def add(self, arguments: pa.Table) -> None:
        """Add rows of schema.ARGUMENTS."""
        self._add(arguments, np.zeros(len(arguments), np.int8))

    def _add(self, arguments: pa.Table, asked: npt.NDArray[np.int8]) -> None:
        self._joined.clear()
        for rows in self._rows.values():
            rows[:] = [part[part["asked"] < _LONG].assign(asked=lambda part: part["asked"] + (part["asked"] > 0)) for part in rows]
        shapes, dtypes = (arguments[name].combine_chunks() for name in ("shapes", "dtypes"))
        rows = pd.DataFrame({name: arguments[name].to_numpy() for name in KEY})
        rows["shapes"] = self._numbers(_shape_words(shapes), self.shapes, _shapes_of)
        names = dtypes.flatten().dictionary_encode()
        words = names.indices.fill_null(UNREAD).to_numpy().astype(np.int64), _borders(dtypes)
        known = [*names.dictionary.to_pylist(), None]
        rows["dtypes"] = self._numbers(words, self.dtypes, lambda own: tuple(known[i] for i in own))
        rows["asked"] = asked
        result = arguments["result"].to_numpy()
        for which, parts in self._rows.items():
            parts.append(rows[result == which])

    def given(self, calls: pd.DataFrame, result: bool) -> tuple[Ints, Ints]:
        """For each of `calls` (KEY) the numbers of the shapes and dtypes of its arguments or, with `result`, of what it returned; UNREAD if none."""
        parts = self._rows[result]
        if not parts:
            return np.full(len(calls), UNREAD, np.int64), np.full(len(calls), UNREAD, np.int64)
        if result not in self._joined:
            parts[:] = [pd.concat(parts, ignore_index=True).drop_duplicates(KEY)]
            self._joined.add(result)
        rows = parts[0].assign(row=np.arange(len(parts[0])))
        found = calls[KEY].merge(rows, how="left", on=KEY)[["shapes", "dtypes", "row"]].fillna(UNREAD).to_numpy(np.int64)
        parts[0].loc[rows["row"].isin(found[:, 2]).to_numpy() & (parts[0]["asked"] == 0).to_numpy(), "asked"] = 1
        return found[:, 0], found[:, 1]

    def state(self) -> State:
        """The rows that are kept, to resume() from."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, _STATE) as stream:
            for result, parts in self._rows.items():
                for rows in parts:
                    lists = {"shapes": self.shapes_of(rows["shapes"].to_numpy()), "dtypes": self.dtypes_of(rows["dtypes"].to_numpy())}
                    columns = {**{name: rows[name].to_numpy() for name in (*KEY, "asked")}, "result": np.full(len(rows), result), **lists}
                    stream.write_table(pa.table([pa.array(columns[each.name], each.type) for each in _STATE], schema=_STATE))
        return {_WAITING: np.frombuffer(out.getvalue(), np.uint8)}

    def resume(self, state: State) -> None:
        """Add the rows of an earlier one's state(). Raises KeyError, ValueError and pa.ArrowException where it is none."""
        rows = pa.ipc.open_stream(state[_WAITING].tobytes()).read_all()
        rows.validate(full=True)
        if rows.schema != _STATE:
            raise ValueError("no such state")
        self._add(rows, rows["asked"].to_numpy())

    def shapes_of(self, numbers: Ints) -> pa.Array:
        """The shapes that `numbers` stand for, as the column of schema.OPERATORS; null for UNREAD."""
        return _take(self.shapes, _SHAPES, numbers)

    def dtypes_of(self, numbers: Ints) -> pa.Array:
        """The dtypes that `numbers` stand for, likewise."""
        return _take(self.dtypes, _DTYPES, numbers)

    def _numbers(self, words: tuple[Ints, Ints], known: list[Any], decode: Any) -> Ints:
        """The number of each row of `words`; a value not seen before is decoded and appended to `known`."""
        rows = _rows(*words).dictionary_encode()
        numbers = []
        for raw in rows.dictionary:
            value = decode(np.frombuffer(raw.as_buffer(), np.int64).tolist())
            # The key includes the list, as an empty tuple is a value of both.
            key = (id(known), value)
            if key not in self._number:
                self._number[key] = len(known)
                known.append(value)
            numbers.append(self._number[key])
        return np.array(numbers, np.int64)[rows.indices.to_numpy()] if numbers else np.zeros(0, np.int64)


def distinct_shapes(shapes: "pd.Series[Any]") -> tuple[Ints, list[tuple[tuple[int, ...] | None, ...]]]:
    """Number the distinct values of a column `shapes` of schema.OPERATORS: (each row's number, UNREAD for null; the values)."""
    column = pa.array(shapes, _SHAPES)
    rows = _rows(*_shape_words(column)).dictionary_encode()
    values = [_shapes_of(np.frombuffer(raw.as_buffer(), np.int64).tolist()) for raw in rows.dictionary]
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), rows.indices.to_numpy().astype(np.int64), UNREAD), values


def _borders(lists: pa.ListArray) -> Ints:
    """The offsets in flatten() at which the lists begin, and the end of the last."""
    return np.concatenate(([0], np.cumsum(lists.value_lengths().fill_null(0).to_numpy()))).astype(np.int64)


def _shape_words(shapes: pa.ListArray) -> tuple[Ints, Ints]:
    """Each row as words: for each tensor its number of dimensions (UNREAD if undefined), then its sizes. Also the rows' offsets."""
    tensors = shapes.flatten()
    dimensions = tensors.value_lengths().fill_null(UNREAD).to_numpy().astype(np.int64)
    begin = np.concatenate(([0], np.cumsum(1 + np.maximum(dimensions, 0))))
    words = np.empty(begin[-1], np.int64)
    is_size = np.ones(len(words), bool)
    is_size[begin[:-1]] = False
    words[begin[:-1]], words[is_size] = dimensions, tensors.flatten().to_numpy()
    return words, begin[_borders(shapes)]


def _shapes_of(words: list[int]) -> tuple[tuple[int, ...] | None, ...]:
    shapes: list[tuple[int, ...] | None] = []
    at = 0
    while at < len(words):
        size = words[at]
        shapes.append(None if size == UNREAD else tuple(words[at + 1 : at + 1 + size]))
        at += 1 + max(size, 0)
    return tuple(shapes)


def _rows(words: Ints, borders: Ints) -> pa.Array:
    """Rows of words as binary values, which Arrow can compare."""
    offsets, data = pa.py_buffer(8 * borders), pa.py_buffer(np.ascontiguousarray(words))
    return pa.Array.from_buffers(pa.large_binary(), len(borders) - 1, [None, offsets, data])


def _take(values: list[Any], type_: pa.DataType, numbers: Ints) -> pa.Array:
    return pa.array(values, type_).take(pa.array(numbers, mask=numbers == UNREAD))
