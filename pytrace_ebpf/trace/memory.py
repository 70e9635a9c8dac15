"""The table of what memory functions used as data, a part of trace/schema.py."""

from pytrace_ebpf.trace.table import Column, Table


def _of_function(name: str, unit: str, meaning: str, null: str) -> tuple[Column, Column]:
    return (
        Column(
            name, "int64", unit, f"{meaning}, in those of its calls that are not within another call of it, with all that they call; {null}", True
        ),
        Column(f"self_{name}", "int64", unit, "the same, in all of its calls, without the calls below", True),
    )


MEMORY = Table(
    "memory",
    "One row per function: what memory its calls used; derived from the other tables and rebuildable. Of faults and growth, those of the thread that the call is on.",
    (),
    (
        Column("func_id", "int32", "", "joins functions; -1 unknown"),
        Column("calls", "int64", "", "how many"),
        *_of_function("minor_faults", "", "page faults for which nothing had to be read", "null without --faults"),
        *_of_function("major_faults", "", "page faults for which something was read", "null without --faults"),
        *_of_function("grown_bytes", "bytes", "growth of the process's resident memory", "null where that was not recorded"),
        *_of_function("blocks", "", "blocks that Python's allocators handed out", "null without --memory"),
        *_of_function("bytes", "bytes", "their sizes", "null without --memory"),
        Column("kept_blocks", "int64", "", "of blocks those that were not freed within the call: they were there at its end; null as bytes", True),
        Column("kept_bytes", "int64", "bytes", "their sizes", True),
        Column(
            "peak_bytes",
            "int64",
            "bytes",
            "of any of its calls: the most that what its thread has allocated and is not freed grew to, from where it was at the call's start; null as bytes",
            True,
        ),
        *_of_function(
            "native_bytes", "bytes", "sizes of the blocks that malloc and the like handed out, estimated from samples", "null without --native-memory"
        ),
        Column("native_kept_bytes", "int64", "bytes", "of these those that were not freed within the call by its thread; null as native_bytes", True),
    ),
    derived=True,
)
