"""An agent's records to columns of `events`, step by step as agent.h says: the judge of the compiled library."""

from typing import Any

import numpy as np

from pytrace_ebpf.rebuild.decoding import Line
from pytrace_ebpf.trace.schema import CallKind


def decoded(records: np.ndarray, func_ids: np.ndarray, line: Line, span: tuple[int, int], lines: bool = False) -> dict[str, Any] | None:
    """Lists by column; None where no agent wrote the records. `lines`: there may be some of lines."""
    columns: dict[str, Any] = {name: [] for name in ("ts", "kind", "func_id", "frame", "line")}
    for stamp_line, what in zip(records["stamp_line"].tolist(), records["what"].tolist(), strict=True):
        kind = what >> 52 & 7
        if kind in (3, 7) and not lines:
            return None
        kind = CallKind.STANDS.value if kind == 3 else kind
        since = ((stamp_line & (1 << 48) - 1) - line.since) % (1 << 48)
        since -= 1 << 48 if since >= 1 << 47 else 0
        left = stamp_line >> 48 | what >> 55 << 16
        row = {
            "ts": min(max(line.from_ns + int(since * line.ns_per_stamp), span[0]), span[1]), "kind": kind,
            "func_id": int(func_ids[min(what >> 32 & 0xFFFFF, len(func_ids) - 1)]), "frame": what & 0xFFFFFFFF, "line": left or -1,
        }  # fmt: skip
        for name, value in row.items():
            columns[name].append(value)
    return columns
