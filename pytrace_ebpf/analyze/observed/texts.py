"""What an object was as a person writes it: as it is distinguished from others, and by its type alone."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pytrace_ebpf.trace.observed import CUT, REDACTED

_LONGEST = 40  # characters of a value
_LEADS = {"return": "-> ", "yield": "yields ", "raised": "raises "}

Ints = npt.NDArray[np.int64]


class Texts(NamedTuple):
    """Of each row the number of its text in `words`."""

    codes: Ints
    words: list[str]


def texts(rows: pa.Table) -> tuple[Texts, Texts]:
    """(with values, sizes and lengths; by type, element type and number of dimensions) of rows of schema.OBSERVED."""
    what, name, kind, dtype, status = (_plain(rows[column]) for column in ("what", "name", "type", "dtype", "status"))
    is_argument = pc.equal(what, "argument")
    lead = pc.if_else(is_argument, _join(pc.fill_null(name, "?"), ": "), _leads(what))
    value, shape = (rows[column].combine_chunks() for column in ("value", "shape"))
    is_array = pc.fill_null(pc.is_valid(dtype), False)
    redacted = pc.if_else(pc.equal(status, REDACTED), " (redacted)", "")
    is_none = pc.equal(pc.fill_null(kind, "?"), "NoneType")
    plain = _join(lead, pc.if_else(is_none, "None", pc.fill_null(kind, "?")), redacted)
    sizes, dimensions = _sizes(shape)
    element = pc.fill_null(dtype, "")
    whole = pc.if_else(is_array, _join(plain, "[", element, " ", dimensions, "d]"), plain)
    of_array = _join(plain, "[", element, " ", sizes, "]")
    of_size = pc.if_else(pc.is_valid(shape), _join(plain, "[", sizes, "]"), plain)
    of_value = _join(plain, " = ", _values(value, kind, pc.equal(status, CUT)))
    shown = pc.if_else(is_array, of_array, pc.if_else(is_none, plain, pc.if_else(pc.is_valid(value), of_value, of_size)))
    return _numbered(shown), _numbered(whole)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks().cast(pa.string())


def _join(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _leads(what: pa.Array) -> pa.Array:
    return pc.fill_null(pa.array(list(_LEADS.values())).take(pc.index_in(what, pa.array(list(_LEADS)))), "")


def _values(value: pa.Array, kind: pa.Array, cut: pa.Array) -> pa.Array:
    """Cut, and between quotation marks where it is text."""
    mark = pc.if_else(pc.equal(pc.fill_null(kind, ""), "str"), "'", "")
    value = pc.fill_null(value, "")
    short = pc.utf8_slice_codeunits(value, 0, _LONGEST)
    more = pc.if_else(pc.or_(pc.greater(pc.utf8_length(value), _LONGEST), cut), "…", "")
    return _join(mark, short, mark, more)


def _sizes(shape: pa.ListArray) -> tuple[pa.Array, pa.Array]:
    """2x3, and how many of these there are; of what has no dimension () and 0."""
    counts = pc.fill_null(pc.list_value_length(shape), 0)
    joined = pc.fill_null(pc.binary_join(shape.cast(pa.list_(pa.string())), "x"), "")
    return pc.if_else(pc.equal(counts, 0), "()", joined), counts.cast(pa.string())


def _numbered(words: pa.Array) -> Texts:
    encoded = words.dictionary_encode()
    return Texts(encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist())
