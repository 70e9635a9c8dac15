"""The stream of native calls below Python's: `--layers`. Calls are rows of `events`; these are what they were given and returned, and the errors that left them."""

from pytrace_ebpf.trace.layers import NATIVE
from pytrace_ebpf.trace.shape import WHOLE, Each, Fields, List, Maybe
from pytrace_ebpf.trace.stream import Loss, Option, Stream
from pytrace_ebpf.trace.table import PID, TID, Column, Table

NAMES = {layer.option: layer.name for layer in NATIVE}  # as a user calls them: as the trace does

ARGUMENTS = Table(
    "arguments",
    "One row per entry and per return of a native call whose tensors could be read.",
    (),
    (
        Column("ts", "int64", "ns", "when: start_ns of the call for what it was given, end_ns for what it returned"),
        PID,
        TID,
        Column("func_id", "int32", "", "joins functions"),
        Column("result", "bool", "", "what it returned, not what it was given"),
        Column(
            "shapes",
            "list of list of int64",
            "",
            "sizes of each tensor, in the order of the signature (those of a list one after the other); null for an undefined one, "
            "[] for one without dimensions. Of a BLAS call: [[m, k], [k, n]]",
        ),
        Column("dtypes", "list of string", "", "element type of each, as PyTorch names it (float32, int64); null as in shapes"),
    ),
)

ERRORS = Table(
    "errors",
    "One row per error that native code raised, where that was recorded.",
    (),
    (
        Column("ts", "int64", "ns", "when it was raised"),
        PID,
        TID,
        Column("text", "string", "", "its message"),
    ),
)


def _layers(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise ValueError(f"{name} is not a layer; there are {', '.join(NAMES)}")
    return tuple(dict.fromkeys(NAMES[name] for name in names))


STREAM = Stream(
    "layers",
    Option("record native calls below Python's as well: torch (PyTorch's operators), blas, cuda, joined by commas", metavar="NAMES", parse=_layers),
    users=True,
    more_options={
        "operators": Option(
            "of torch, these operators instead of about 250 usual ones: aten::conv*, or all; may be given several times",
            metavar="PATTERN",
            several=True,
            adds=("operator",),
        )
    },
    tables=(ARGUMENTS, ERRORS),
    losses=(Loss("argument_ring", 6, "tensor", "tensors", "calls of operators that were given or returned such have no shapes"),),
    recorder="pytrace_ebpf.record.native.layers.NativeLayers",
    needs_ebpf="native calls are recorded by probes",
    needs_calls=False,
    metadata={
        "native": Fields(
            {},
            {
                "layers": List(str),
                "functions": Each(Maybe(WHOLE)),
                "missing": List(str),
                "tensors_read": Maybe(WHOLE),
                "tensors_unknown": Maybe(WHOLE),
            },
        )
    },
)
