"""The streams, a line each, in the order in which `--help` has their options."""

from pytrace_ebpf.trace.stream import Stream
from pytrace_ebpf.trace.streams import args, c_calls, clients, faults, layers, lines, memory, native_memory, opcodes

STREAMS: tuple[Stream, ...] = (
    args.STREAM,
    clients.STREAM,
    c_calls.STREAM,
    lines.STREAM,
    opcodes.STREAM,
    faults.STREAM,
    memory.STREAM,
    native_memory.STREAM,
    layers.STREAM,
)
