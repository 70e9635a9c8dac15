"""A made-up stream, declared. Nothing of it stands outside this folder."""

from pytrace_ebpf.trace.shape import WHOLE, Fields
from pytrace_ebpf.trace.stream import Counter, Loss, Option, Stream
from pytrace_ebpf.trace.table import PID, TID, Column, Table


def _tempo(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1000:
        raise ValueError(f"{text} is not a tempo; give beats a second, at most 999")
    return int(text)


BEATS = Table(
    "beats",
    "One row per beat (`--beats-made-up`).",
    (),
    (Column("ts", "int64", "ns", "when"), PID, TID, Column("number", "int32", "", "which"), Column("beat_bytes", "int64", "bytes", "one each")),
)
STREAM = Stream(
    "beats_made_up",
    Option("record beats", metavar="TEMPO", parse=_tempo, bare=200),
    users=True,
    more_options={"beats_of": Option("of these alone", metavar="PATTERN", several=True)},
    tables=(BEATS,),
    losses=(Loss("beat_ring", 21, "beat", "beats", "nobody heard them"),),
    recorder="tests.unit.beats.recorder.Beats",
    needs_agent="only the agent hears them",
    excludes={"budget": "beats of what is left out would be missing"},
    metadata={"beats": Fields({"tempo": WHOLE})},
    report="tests.unit.beats.rhythm",
    counters=(Counter("beats", "beat_bytes", "beats so far"),),
)
