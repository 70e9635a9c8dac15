"""What a recording is asked for."""

from dataclasses import dataclass, field
from pathlib import Path

from pytrace_ebpf.record.filters import Filters

LAYER_NAMES = {"torch": "operator", "blas": "blas", "cuda": "cuda"}  # as a user calls them: as the trace does


@dataclass(frozen=True)
class Options:
    """What a recording is asked for."""

    output: Path
    source: str = "auto"
    follow: bool = True
    segment_s: float = 1.0
    call_ring_pages: int = 16384  # usdt: 64 MiB, 1.6 million events
    arena_bytes: int = 256 << 20  # agent: of each process, 16 million events; taken only as far as it is used
    sched_ring_pages: int = 4096
    filters: Filters = field(default_factory=Filters)
    rootless: bool = False
    layers: tuple[str, ...] = ()  # native ones, of schema.LAYERS
    operators: tuple[str, ...] = ()  # patterns; () for the default set
