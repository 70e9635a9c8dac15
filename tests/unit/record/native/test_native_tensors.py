"""Tensors as probes read them become shapes and types of `arguments`; what does not fit the layout is null, never wrong."""

from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.record.native import tensors

TENSOR = np.dtype([("sizes", np.int64, 5), ("numel", np.int64), ("data_type", np.uint16), ("dims", np.uint16), ("pad", np.uint32)])
EVENT = np.dtype(
    [
        ("ts", np.uint64),
        ("pid_tgid", np.uint64),
        ("func", np.uint32),
        ("result", np.uint16),
        ("count", np.uint16),
        ("pad", np.uint64),
        ("tensors", TENSOR, 8),
    ]
)
FLOAT, LONG, UNDEFINED, ABSENT = 6, 4, 48, 0xFFFF


def one(*sizes: int, dtype: int = FLOAT, numel: int | None = None) -> tuple[Any, ...]:
    product = int(np.prod(sizes, dtype=np.int64))
    return [*sizes[:5], *[77] * (5 - len(sizes))], product if numel is None else numel, dtype, len(sizes), 0


NONE = ([1, 2, 3, 4, 5], 120, FLOAT, ABSENT, 0)
UNDEFINED_TENSOR = ([0] * 5, 0, UNDEFINED, 1, 0)


def columns(*calls: list[tuple[Any, ...]], result: bool = False) -> Any:
    records = np.zeros(len(calls), EVENT)
    for row, (record, read) in enumerate(zip(records, calls, strict=True)):
        record["ts"], record["pid_tgid"], record["func"], record["result"], record["count"] = 100 + row, 7 << 32 | 8, row, result, len(read)
        record["tensors"] = ([1] * 5, 1, FLOAT, 5, 0)  # what is behind the count is old
        for at, tensor in enumerate(read):
            record["tensors"][at] = tensor
    return tensors.argument_columns(records, np.arange(50, 60, dtype=np.int32))


def shapes(*calls: list[tuple[Any, ...]]) -> list[Any]:
    return [(row["shapes"], row["dtypes"]) for row in tensors.arguments_table(columns(*calls)).to_pylist()]


def test_shapes_and_types() -> None:
    assert shapes([one(2, 3), one(4, dtype=LONG), one(), one(0, 5), one(1, 2, 3, 4, 5)], [one(9)]) == [
        ([[2, 3], [4], [], [0, 5], [1, 2, 3, 4, 5]], ["float32", "int64", "float32", "float32", "float32"]),
        ([[9]], ["float32"]),
    ]


def test_what_is_not_there_is_null() -> None:
    assert shapes([one(2), NONE, UNDEFINED_TENSOR, one(3)]) == [([[2], None, None, [3]], ["float32", None, None, "float32"])]


@pytest.mark.parametrize("odd", [one(2, 3, numel=7), one(1 << 40, 1 << 40, numel=1), one(2, dtype=300), ([2] * 5, 64, FLOAT, 6, 0)])
def test_what_does_not_fit_is_null(odd: tuple[Any, ...]) -> None:
    assert shapes([odd, one(3)]) == [([None, [3]], [None, "float32"])]


def test_calls_without_any_tensor_are_left_out() -> None:
    read = columns([NONE], [], [one(2)], [one(2, numel=3)])
    table = tensors.arguments_table(read)
    assert table.drop(["shapes", "dtypes"]).to_pylist() == [{"ts": 102, "pid": 7, "tid": 8, "func_id": 52, "result": False}]
    assert tensors.arguments_table(columns([NONE])).num_rows == 0


def test_results() -> None:
    assert tensors.arguments_table(columns([one(2)], result=True)).column("result").to_pylist() == [True]


def test_how_many_are_laid_out_otherwise() -> None:
    assert tensors.unknown(columns([one(2), NONE, UNDEFINED_TENSOR], [one(2, numel=9)], [])) == (2, 1)
    assert tensors.unknown(columns([([1] * 5, 64, FLOAT, 6, 0)])) == (1, 0)  # its sizes are somewhere else
    assert tensors.unknown(columns([([1] * 5, 64, 0x7F3A, 0x5D40, 0)])) == (1, 1)  # a pointer is where its dimensions should be
