"""Text made column by column, as it goes into a file."""

from typing import BinaryIO

import numpy as np
import pyarrow as pa


def written(text: pa.Array, out: BinaryIO, skip: int = 0) -> None:
    """Write the strings of `text` one after the other, but for the first `skip` bytes. An Arrow string column is one run of bytes."""
    _, offsets, characters = text.buffers()
    if len(text):
        out.write(characters[skip : int(np.frombuffer(offsets, np.int32)[len(text)])])
