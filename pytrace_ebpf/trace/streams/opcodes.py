"""The stream of how often functions execute each instruction, and for how long: `--opcodes exact`."""

from pytrace_ebpf.trace.stream import Loss, Option, Stream
from pytrace_ebpf.trace.table import PID, Column, Table

OPCODES = Table(
    "opcodes",
    "One row per function, line and instruction that was executed, and segment (`--opcodes exact`): add up the rows.",
    (),
    (
        Column("ts", "int64", "ns", "when it was looked: what was counted from the look before, about a second earlier, to this one"),
        PID,
        Column("func_id", "int32", "", "joins functions"),
        Column("line", "int32", "", "of the instruction; -1 it has none"),
        Column("opcode", "dictionary of string", "", "the general instruction, which is what is executed while instructions are counted"),
        Column(
            "specialized",
            "dictionary of string",
            "",
            "the form that CPython had made of it before its code was first counted; null where state is another",
            True,
        ),
        Column(
            "state",
            "dictionary of string",
            "",
            "specialized; generic: CPython had tried and could not; unknown: it had not been executed often enough by then; "
            "never: it is not specialized by what it meets (up to Python 3.10 none is)",
        ),
        Column("hits", "int64", "", "how often it was executed"),
        Column(
            "wall_ns", "int64", "ns", "the thread's time from there to its next instruction, without that of calls whose instructions are counted"
        ),
    ),
    timed=False,
)
STREAM = Stream(
    "opcodes",
    Option(
        "count every instruction that functions execute, with its time, which makes them several times slower (agent); --sample shows which take time for less",
        choices=("exact",),
    ),
    users=True,
    more_options={
        "opcodes_of": Option(
            "with --opcodes, those of these functions alone, as --lines-of; may be given several times", metavar="PATTERN", several=True
        )
    },
    values="filters",
    tables=(OPCODES,),
    losses=(
        Loss(
            "opcode_table",
            16,
            "count of an instruction",
            "counts of instructions",
            "there was no room, or another tool took the counter; the instructions were executed more often",
        ),
    ),
    needs_all_calls=True,
    needs_agent="only the agent sees every instruction",
    excludes={"budget": "instructions of functions that are left out for a time would be missing"},
)
