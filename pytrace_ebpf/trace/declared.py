"""The streams, a line each, in the order in which `--help` has their options."""

from pytrace_ebpf.trace.stream import Stream
from pytrace_ebpf.trace.streams import faults, memory, native_memory

STREAMS: tuple[Stream, ...] = (faults.STREAM, memory.STREAM, native_memory.STREAM)
