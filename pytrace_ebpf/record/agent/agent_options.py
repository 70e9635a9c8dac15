"""What the agent is told to record, as its options."""

from pytrace_ebpf.record.agent import statements
from pytrace_ebpf.record.filters import Filters, Observed


def of_recording(filters: Filters, observed: Observed, memory: bool, bounded: bool, clients: str | None) -> list[tuple[str, object]]:
    """As AgentCalls is given these."""
    return [
        ("max_depth", filters.max_depth),
        ("c_calls", int(filters.c_calls)),
        ("lines", int(filters.lines is not None)),
        *(("lines_of", pattern) for pattern in filters.lines_of),
        ("opcodes", int(filters.opcodes is not None)),
        *(("opcodes_of", pattern) for pattern in filters.opcodes_of),
        ("memory", int(memory)),
        ("main_only", int(bounded)),
        *(("include", pattern) for pattern in filters.include),
        *(("exclude", pattern) for pattern in filters.exclude),
        *(("args", pattern) for pattern in observed.args),
        *(("redact", pattern) for pattern in observed.redact),
        *statements.options(clients),
    ]
