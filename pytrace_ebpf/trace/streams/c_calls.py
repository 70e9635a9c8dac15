"""The stream of calls of what is written in C: `--c-calls`. Its rows are of `events`."""

from pytrace_ebpf.trace.stream import Option, Stream

STREAM = Stream(
    "c_calls",
    Option(
        "record calls of what is written in C as well, such as time.sleep and list.append (agent); each costs as much as a call of Python's",
    ),
    users=True,
    values="filters",
    needs_agent="only the agent sees calls of what is written in C",
    needs_all_calls=True,
)
