"""What a recording is asked for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytrace_ebpf.record.filters import Filters, Observed
from pytrace_ebpf.record.flight.conditions import Flight
from pytrace_ebpf.trace.declared import STREAMS
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE


@dataclass(frozen=True)
class Keep:
    """How much of a recording is kept while it goes on: the last `seconds`, or at most `size` bytes."""

    seconds: float | None = None
    size: int | None = None


_OF_SAMPLES = 5  # times as long a segment is


@dataclass(frozen=True)
class Options:
    """What a recording is asked for."""

    output: Path | None  # None: a new directory of today's name, in the working directory
    source: str = "auto"
    follow: bool = True
    segment_s: float = 1.0
    call_ring_pages: int = 16384  # usdt: 64 MiB, 1.6 million events
    arena_bytes: int = 256 << 20  # agent: of each process, 16 million events; taken only as far as it is used
    sched_ring_pages: int = 4096
    filters: Filters = field(default_factory=Filters)
    observed: Observed = field(default_factory=Observed)
    rootless: bool = False
    running: bool = False  # rootless: what is recorded runs already
    streams: Mapping[str, Any] = field(default_factory=dict)  # the options of those that are asked for, with their values
    max_size: int | None = None  # bytes of the trace; None: half of what is free when it begins
    match: str | None = None  # a regular expression: processes whose command line fits are traced, now and while it records
    budget: float | None = None  # share of the program's CPU time that tracing may cost; None: whatever it costs
    unasked: bool = False  # nobody asked for a source: what turns out to be too dear is recorded by another one, or in part
    keep: Keep | None = None  # None: all of it
    sample: float | None = None  # stacks a second and core; None: none
    switches: bool = True  # beside samples alone: every switch and wake-up is recorded, too
    lasting: bool = False  # threads that stay off the core are sampled in every segment, not only when they come back
    flight: Flight | None = None  # what is recorded is held in memory, as far as `keep` says, and becomes a trace when something happens
    lean: bool = False  # without neighbours and usage, which cost more than samples
    requests: tuple[str, ...] = ()  # patterns of functions that answer requests: for those who read
    neighbours: bool = True  # names of the threads of other processes that took a core or woke somebody

    @property
    def samples_alone(self) -> bool:
        """Whether stacks are sampled and no call is recorded."""
        return self.source == SAMPLES_ALONE

    def value_of(self, option: str) -> Any:
        """Of an option of a stream; None where it is not asked for."""
        return self.streams.get(option)

    def as_recorded(self) -> dict[str, Any]:
        """As the manifest has it: streams side by side with all else, None or False where they were not asked for."""
        said = asdict(self)
        return {
            **{name: each.absent for stream in STREAMS if stream.values == "streams" for name, each in stream.options.items()},
            **said.pop("streams"),
            **said,
        }

    def segment_length(self, recorded_s: float) -> float:
        """Seconds of the next segment, after so many: longer ones in a long recording, so that they do not become too many.

        And of samples alone, of which few seconds are nothing: writing took a third of what recording them costs the tracer.
        """
        if self.flight is not None:  # so soon it is known that something happened
            return self.segment_s
        kept_s = self.keep.seconds if self.keep is not None else None
        least_s = self.segment_s * (_OF_SAMPLES if self.samples_alone else 1)
        return max(least_s, min(recorded_s, kept_s or recorded_s) / 3600)
