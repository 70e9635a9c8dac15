"""What a trace's manifest says of its samples: how much time each stands for, and in what form they are."""

from pytrace_ebpf.trace.reader import Trace
from pytrace_ebpf.trace.sampled import SAMPLES_ALONE


def period_of(trace: Trace) -> int | None:
    """The time that a sample stands for, ns, of a trace whose functions are known by samples alone; None of one that has calls."""
    sampling = trace.manifest.get("sampling")
    if not sampling or any(each["source"] not in (SAMPLES_ALONE, None) for each in trace.manifest["sources"]):
        return None
    return int(sampling["period_ns"])


def is_summed(trace: Trace) -> bool:
    """Whether a trace has samples as sums alone (schema.PROFILE)."""
    return bool((trace.manifest.get("sampling") or {}).get("summed_ns"))
