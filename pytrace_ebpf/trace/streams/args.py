"""The stream of what functions are given and return: `--args`."""

from pytrace_ebpf.trace.observed import OBSERVED
from pytrace_ebpf.trace.stream import Loss, Option, Stream

STREAM = Stream(
    "args",
    Option(
        "record what these functions are given and return, types and values: NAME, CLASS.NAME, a module or file, __main__ (docs/patterns.md); may be given several "
        "times. '*' for all. A value costs about as much as a call does (by the agent up to 0.16 us each, by --source usdt 1.6 us), and may be a secret",
        metavar="PATTERN",
        several=True,
    ),
    users=True,
    more_options={
        "redact": Option(
            "of --args, record only the types of arguments of this name, and of what functions of this name return, in addition to *password*, "
            "*token*, *secret*, key and the like (docs/security.md); none: without these",
            metavar="NAME",
            several=True,
        )
    },
    values="observed",
    tables=(OBSERVED,),
    losses=(Loss("value_ring", 11, "value that was asked for", "values that were asked for", "calls that were given or returned such lack it"),),
    prefers_agent=True,
    report="pytrace_ebpf.view.args",
    in_page=False,
)
