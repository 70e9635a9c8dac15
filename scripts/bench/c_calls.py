"""What a call of a C function costs with `--c-calls`, side by side with the profilers that record such calls too.

Processes of one interpreter call len() in a loop in turn: alone, under the tracer with the agent, the same with --c-calls, under
VizTracer, under cProfile. Quote the ratios of added time; the times are this machine's.

    scripts/bench/c_calls.py [--python PATH]... [--rounds 21]
"""

from added import compare, main
from agent import version_of, viztracer_for

from pytrace_ebpf.record.filters import Filters


def measure(python: str, rounds: int) -> None:
    """Print the table of one interpreter."""
    packages = viztracer_for(version_of(python, None))
    compare(python, rounds, "len", "--c-calls", Filters(c_calls=True), [*(["viztracer"] if packages else []), "cprofile"], packages)


if __name__ == "__main__":
    main(__doc__, measure)
