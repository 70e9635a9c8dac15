"""Which answers there are of a daemon's sums: those that need no threads and no moments."""

from pytrace_ebpf.analyze.samples.sampling import is_summed
from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.trace.reader import Trace

_OF_THREADS = ("thread", "core", "wait", "gil", "opcode", "request", "perfetto")


def has_answer(trace: Trace, asked: str) -> None:
    """Raise UsageError where the trace has sums of samples, and `asked`, of --by or --to, is about single threads and moments."""
    if is_summed(trace) and asked in _OF_THREADS:
        raise UsageError(
            f"{asked} needs what each thread did and when, which a daemon's sums do not have; pytrace-ebpf attach --sample PID records it, "
            "and the sums are reported by function, module, line or task."
        )
