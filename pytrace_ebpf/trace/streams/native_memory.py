"""The stream of what malloc hands out and takes back: `--native-memory`."""

from pytrace_ebpf import units
from pytrace_ebpf.trace.shape import WHOLE, Fields
from pytrace_ebpf.trace.stream import Counter, Loss, Option, Stream
from pytrace_ebpf.trace.table import PID, TID, Column, Table

_SAMPLE_BYTES, _MOST_SAMPLE_BYTES = 512 << 10, 1 << 30

NATIVE_BLOCKS = Table(
    "native_blocks",
    "One row per block of malloc's that was sampled when it was allocated (`--native-memory`), and one per such block that was freed.",
    (),
    (
        Column("ts", "int64", "ns", "when"),
        PID,
        TID,
        Column(
            "level_bytes",
            "int64",
            "bytes",
            "by so much what is allocated grew, as estimated: a block smaller than `native_memory.sample_bytes` of the manifest stands for so many bytes, as of its kind "
            "one in sample_bytes / block_bytes is sampled; a larger one for itself. Below 0: it was freed",
        ),
        Column("block_bytes", "int64", "bytes", "size of the block, as asked for; one that is resized counts as freed and allocated"),
        Column("allocated_ns", "int64", "ns", "of a block that was freed: when it was allocated; else 0"),
        Column("allocated_tid", "int32", "", "and by which thread; else 0"),
    ),
)


def _sample_bytes(text: str) -> int:
    if not (size := units.size(text)):
        raise ValueError(f"{text} is not a size; give one like 500M or 20GiB")
    if size > _MOST_SAMPLE_BYTES:
        raise ValueError(f"{text} is too much: of a program that allocates less nothing would be seen; give 1GiB at most")
    return size


STREAM = Stream(
    "native_memory",
    Option(
        "record what malloc hands out and takes back, tensors and arrays, for report --by memory: sample one allocation per "
        "SIZE bytes (512KiB); 1 records all; every malloc and every free costs about 1.4 us",
        metavar="SIZE",
        parse=_sample_bytes,
        bare=_SAMPLE_BYTES,
    ),
    users=True,
    tables=(NATIVE_BLOCKS,),
    losses=(
        Loss("block_ring", 14, "sampled block of malloc's", "sampled blocks of malloc's", "not in any function's sums"),
        Loss(
            "block_map",
            15,
            "sampled block of malloc's",
            "sampled blocks of malloc's",
            "too many were in use at a time, so it seems that none of these is ever freed",
        ),
    ),
    recorder="pytrace_ebpf.record.native.blocks.Blocks",
    needs_ebpf="malloc is seen by probes",
    metadata={"native_memory": Fields({"sample_bytes": WHOLE})},
    report="pytrace_ebpf.view.memory",
    counters=(Counter(NATIVE_BLOCKS.name, "level_bytes", "allocated by malloc"),),
)
