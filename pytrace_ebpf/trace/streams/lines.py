"""The stream of every line that functions come to: `--lines exact`. Its rows are of `events`."""

from pytrace_ebpf.trace.stream import Option, Stream

STREAM = Stream(
    "lines",
    Option(
        "record every line that functions come to, which costs about as much as a call of each (agent); --sample finds the lines that take time for less",
        choices=("exact",),
    ),
    users=True,
    more_options={
        "lines_of": Option(
            "with --lines, those of these functions alone: patterns as of --args; may be given several times", metavar="PATTERN", several=True
        )
    },
    values="filters",
    needs_all_calls=True,
    needs_agent="only the agent sees every line",
    excludes={"budget": "lines of functions that are left out for a time would be missing"},
)
