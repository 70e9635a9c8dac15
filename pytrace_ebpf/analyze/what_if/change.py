"""What is to be different: a function of another speed, no waits for locks or for the GIL, other cores."""

import re
from dataclasses import dataclass
from fractions import Fraction

from pytrace_ebpf.errors import UsageError
from pytrace_ebpf.formatting import clean

_FUNCTION = re.compile(r"(?P<pattern>\S.*?)\s+(?P<times>\d+(\.\d+)?)x")
_CORES = re.compile(r"cores\s+(?P<cores>[1-9]\d{0,5})")
HELP = "by path: what if 'FUNCTION 2x' were twice as fast, or lock or gil: none were waited for, or there were 'cores 4'"
LOCK, GIL, CORES, FUNCTION = "lock", "gil", "cores", "function"


@dataclass(frozen=True)
class Change:
    """One change. kind: LOCK, GIL, CORES (`cores` of them) or FUNCTION: of the time of calls that fit `pattern`, the share `left` is left."""

    kind: str
    pattern: str = ""
    left: Fraction = Fraction(1)
    cores: int = 0


def parsed(said: str) -> Change:
    """What `--what-if` was given: lock, gil, cores N, or PATTERN Nx, N times as fast, of which 0x takes no time. Raises UsageError."""
    said = said.strip()
    if said in (LOCK, GIL):
        return Change(said)
    if found := _CORES.fullmatch(said):
        return Change(CORES, cores=int(found["cores"]))
    if found := _FUNCTION.fullmatch(said):
        times = Fraction(found["times"])
        return Change(FUNCTION, found["pattern"], 1 / times if times else Fraction(0))
    raise UsageError(f"--what-if {clean(said)} is not known: give 'FUNCTION 2x' for one that is twice as fast, lock, gil, or 'cores 4'.")
