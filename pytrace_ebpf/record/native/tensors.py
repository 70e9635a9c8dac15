"""Shapes and element types of tensors, as the probes read them from c10::TensorImpl.

Where its fields lie is known for the PyTorch that this was measured on (2.13). Every tensor is checked against that: the
number of elements, which lies behind the sizes and strides, must be the product of the sizes. What does not fit is not recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytrace_ebpf.lazy_imports import pa
from pytrace_ebpf.record.output.tables import Columns, when_and_who
from pytrace_ebpf.trace.streams.layers import ARGUMENTS

SIZES_OFFSET = 56  # of sizes_and_strides_ in a TensorImpl
_ABSENT = 0xFFFF  # dims: TENSOR_ABSENT of probes/events.h
_DIMS = 64  # a tensor has no more

# By number, as in torch/headeronly/core/ScalarType.h; what comes behind is "undefined".
_DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128",
    "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8",
    "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64", "uint1",
    "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5", "int6", "int7",
    "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip
DTYPE_NUMBERS = {name: number for number, name in enumerate(_DTYPES)}


def argument_columns(records: np.ndarray, func_ids: np.ndarray) -> Columns:
    """tensors_event records as columns of `arguments`, but for the tensors themselves, which stay as they are for now."""
    return {
        **when_and_who(records),
        "func_id": func_ids[records["func"]],
        "result": records["result"] != 0,
        "count": records["count"].astype(np.int64),
        "tensors": records["tensors"].copy(),
    }


def arguments_table(columns: Columns) -> pa.Table:
    """The `arguments` table. Calls of which no tensor fits are left out."""
    read = columns["tensors"]
    there = np.arange(read.shape[1]) < columns["count"][:, None]
    fits = there & _fits(read)
    kept = fits.any(axis=1)
    read, there, fits = read[kept], there[kept], fits[kept]
    tensors, valid = read[there], fits[there]
    dims = np.where(valid, tensors["dims"], 0).astype(np.int64)
    sizes = tensors["sizes"][np.arange(tensors["sizes"].shape[1]) < dims[:, None]]
    shapes = pa.ListArray.from_arrays(_offsets(dims, valid), pa.array(sizes))
    dtypes = pa.array(_DTYPES).take(pa.array(tensors["data_type"].astype(np.int64), mask=~valid))
    of_call = _offsets(there.sum(axis=1))
    plain = {name: columns[name][kept] for name in ("ts", "pid", "tid", "func_id", "result")}
    lists = {"shapes": pa.ListArray.from_arrays(of_call, shapes), "dtypes": pa.ListArray.from_arrays(of_call, dtypes)}
    return pa.table(plain | lists, schema=ARGUMENTS.arrow)


def unknown(columns: Columns) -> tuple[int, int]:
    """(tensors that were read, those of them that do not fit the layout)."""
    read = columns["tensors"]
    most = read["sizes"].shape[-1]
    undefined = (read["data_type"] >= len(_DTYPES)) & (read["dims"] == 1) & (read["numel"] == 0)
    there = (np.arange(read.shape[1]) < columns["count"][:, None]) & (read["dims"] != _ABSENT) & ~undefined
    # Of more dimensions than are read the sizes are somewhere else.
    larger = (read["dims"] > most) & (read["dims"] <= _DIMS) & (read["data_type"] < len(_DTYPES))
    return int(there.sum()), int((there & ~larger & ~_fits(read)).sum())


def _fits(read: Any) -> np.ndarray:
    """Which tensors are there and are what they seem: shape (calls, tensors), bool."""
    most = read["sizes"].shape[-1]
    inside = np.arange(most) < read["dims"][..., None]
    with np.errstate(over="ignore"):
        count = np.where(inside, read["sizes"], 1).prod(axis=-1)
    return (read["dims"] <= most) & (read["data_type"] < len(_DTYPES)) & (count == read["numel"])


def _offsets(lengths: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.array(offsets) if valid is None else pa.array(offsets, mask=np.append(~valid, False))
