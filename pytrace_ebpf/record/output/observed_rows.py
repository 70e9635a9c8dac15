"""What an agent's values say as the table `observed`: texts by the compiled library, everything else by column."""

from __future__ import annotations

import numpy as np

from pytrace_ebpf.lazy_imports import pa, pc
from pytrace_ebpf.rebuild.decoding import value_texts
from pytrace_ebpf.record.native.tensors import DTYPE_NUMBERS
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.trace.observed import VALUE_STATUSES, WHATS
from pytrace_ebpf.trace.schema import Table

# value.kind and value.status of probes/agent/agent.h
OTHER, NONE, BOOL, INT, NEGATIVE, FLOAT, TEXT, BYTES, SIZED, ARRAY, TENSOR = range(KINDS := 11)
COMPLETE, CUT, REDACTED, UNREAD = range(4)

_TENSOR_TYPES = tuple(DTYPE_NUMBERS)
# NPY_TYPES of numpy/ndarraytypes.h: the numbers of the types that every NumPy has, on 64-bit Linux.
_ARRAY_TYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "longlong", "ulonglong", "float32", "float64",
    "longdouble", "complex64", "complex128", "clongdouble", "object", "bytes", "str", "void", "datetime64", "timedelta64", "float16",
)  # fmt: skip


def observed_table(table: Table, columns: Columns) -> pa.Table:
    """Columns ts, pid, tid, name, type (texts or None) and record (struct value) as `observed`."""
    records = np.ascontiguousarray(columns["record"])
    has_value = (records["status"] == COMPLETE) | (records["status"] == CUT)
    argument = records["what"] == WHATS.index("argument")
    arrays = {
        **{name: pa.array(columns[name]) for name in ("ts", "pid", "tid")},
        "what": words(WHATS, records["what"]),
        "position": pa.array(np.where(argument, records["position"].astype(np.int16), -1)),
        "name": pa.array(columns["name"], pa.string()).dictionary_encode(),
        "type": pa.array(columns["type"], pa.string()).dictionary_encode(),
        "value": _values(records),
        "shape": _shapes(records, has_value),
        "dtype": _dtypes(records, has_value),
        "status": words(VALUE_STATUSES, records["status"]),
    }
    return pa.table(arrays, schema=table.arrow)


def element_type(of_tensor: bool, number: int) -> str | None:
    """The name of the type of a tensor's or array's elements by its number; None for none of the usual ones."""
    known = _TENSOR_TYPES if of_tensor else _ARRAY_TYPES
    return known[number] if 0 <= number < len(known) else None


def words(named: tuple[str, ...], numbers: np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """What `named` has at these places; null where that is not known."""
    mask = None if known is None else ~known
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=mask), pa.array(named, pa.string()))


def plain_texts(records: np.ndarray) -> pa.Array:
    """The text of each of an agent's values (struct value, C-contiguous), but for floats; null where it has none."""
    text, ends, has = value_texts(records)
    offsets = np.concatenate(([0], ends))
    return pa.Array.from_buffers(pa.large_string(), len(records), [_bitmap(has), pa.py_buffer(offsets), pa.py_buffer(text)]).cast(pa.string())


def _values(records: np.ndarray) -> pa.Array:
    plain = plain_texts(records)
    is_float = (records["kind"] == FLOAT) & (records["status"] == COMPLETE) & (records["size"] == 8)
    if not is_float.any():
        return plain
    numbers = np.ascontiguousarray(records["data"][is_float, :8]).view(np.float64).ravel()
    return pc.replace_with_mask(plain, pa.array(is_float), _floats(numbers))


def _floats(numbers: np.ndarray) -> pa.Array:
    """As Python writes them: by Arrow, in a tenth of NumPy's time, where it differs by no more than the ".0"."""
    with np.errstate(invalid="ignore"):
        usual = ((np.abs(numbers) >= 1e-4) & (np.abs(numbers) < 1e15)) | (numbers == 0)
    texts = pa.array(numbers).cast(pa.string())
    texts = pc.if_else(pc.match_substring(texts, "."), texts, pc.binary_join_element_wise(texts, "0", "."))
    return texts if usual.all() else pc.replace_with_mask(texts, pa.array(~usual), pa.array(numbers[~usual].astype("U32"), pa.string()))


def _bitmap(values: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _shapes(records: np.ndarray, has_value: np.ndarray) -> pa.Array:
    kind, data = records["kind"], records["data"]
    has_sizes = has_value & np.isin(kind, (ARRAY, TENSOR))
    has_length = (has_value & np.isin(kind, (TEXT, BYTES, SIZED))) | (np.isin(kind, (INT, NEGATIVE)) & (records["status"] == CUT))
    counts = np.where(has_sizes, records["size"].astype(np.int64) // 8, has_length.astype(np.int64))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    numbers = np.empty(offsets[-1], np.int64)
    numbers[offsets[:-1][has_length]] = records["length"][has_length]
    sizes = np.ascontiguousarray(data[has_sizes]).view(np.int64)
    inside = np.arange(sizes.shape[1]) < counts[has_sizes, None]
    numbers[(offsets[:-1][has_sizes, None] + np.arange(sizes.shape[1]))[inside]] = sizes[inside]
    mask = np.append(~(has_sizes | has_length), False)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32), mask=mask), pa.array(numbers))


def _dtypes(records: np.ndarray, has_value: np.ndarray) -> pa.Array:
    of_tensor = records["kind"] == TENSOR
    number = records["dtype"].astype(np.int64)
    most = np.where(of_tensor, len(_TENSOR_TYPES), len(_ARRAY_TYPES))
    known = has_value & (of_tensor | (records["kind"] == ARRAY)) & (number < most)
    named = words((*_ARRAY_TYPES, *_TENSOR_TYPES), number + np.where(of_tensor, len(_ARRAY_TYPES), 0), known)
    return named.dictionary_decode().dictionary_encode()
