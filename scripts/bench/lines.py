"""What a line costs with `--lines exact`, side by side with what else records every line.

Processes of one interpreter run a loop of four lines in turn: alone, under the tracer with the agent, the same with --lines exact, with a function
of Python's own under sys.settrace that does nothing but count, under line_profiler. CPU time: on a core that others use too it
says the same. Quote the ratios of added time; the times are this machine's.

    scripts/bench/lines.py [--python PATH]... [--rounds 21]
"""

from added import compare, main
from agent import fetched, version_of

from pytrace_ebpf.record.filters import Filters


def measure(python: str, rounds: int) -> None:
    """Print the table of one interpreter."""
    packages = fetched(version_of(python, None), "line_profiler", "typing_extensions")
    others = ["settrace", *(["line_profiler"] if packages else [])]
    recorded = compare(python, rounds, "lines", "--lines", Filters(lines="exact"), others, packages)
    print(f"  on disk {recorded['bytes_per_call'] / 2:.1f} bytes a line")


if __name__ == "__main__":
    main(__doc__, measure)
