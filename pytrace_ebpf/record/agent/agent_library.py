"""The agent's library as this process sees it: where it lies, how it lays out what it shares, and its clock.

The contract is probes/agent/agent.h; the structs are what the compiler made of them.
"""

import ctypes
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf import native_library, processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.rebuild.decoding import Line
from pytrace_ebpf.record.kernel.probe_sources import probes_directory

TSC, MONOTONIC = range(2)  # arena.clock

_LOW_48 = (1 << 48) - 1
_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def agent_library() -> Path:
    """Where the built agent lies."""
    return probes_directory() / "agent" / "agent.so"


class Library:
    """The agent's library, loaded here for what it says of itself; that does nothing else."""

    def __init__(self, path: Path) -> None:
        """Raises HostError where it is missing or cannot be loaded."""
        self.path = path
        try:
            library = native_library.load(path)
        except OSError as error:
            raise HostError(f"the agent is not built ({error}); run `make` in the source, or reinstall pytrace-ebpf") from error
        self._anchor = library.pytrace_anchor
        self._anchor.argtypes, self._anchor.restype = (ctypes.c_uint32, ctypes.c_void_p), None
        self._moment = (ctypes.c_uint64 * 2)()
        self.dtypes = dtypes_of(ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "pytrace_layout"))).decode())

    def moment(self, clock: int) -> tuple[int, int]:
        """(stamp of that clock, CLOCK_MONOTONIC ns) of one moment."""
        self._anchor(clock, self._moment)
        return int(self._moment[0]), int(self._moment[1])


def dtypes_of(layout: str) -> dict[str, np.dtype]:
    """Lines of "struct field type offset count" as one dtype per struct; an array of char is a text, any other one is of that length."""
    fields: dict[str, dict[str, list[Any]]] = {}
    for line in layout.splitlines():
        struct, name, kind, offset, count = line.split()
        of = fields.setdefault(struct, {"names": [], "formats": [], "offsets": []})
        of["names"].append(name)
        of["formats"].append(f"S{int(count)}" if kind == "S1" else (kind, (int(count),)) if int(count) > 1 else kind)
        of["offsets"].append(int(offset))
    return {struct: np.dtype(of) for struct, of in fields.items()}  # type: ignore[call-overload]


@cache
def best_clock() -> int:
    """TSC, the processor's own counter, where the kernel itself keeps time by it, so that it runs evenly and alike on all cores; else MONOTONIC."""
    try:
        return TSC if _CLOCKSOURCE.read_text().strip() == processors.here().counter else MONOTONIC
    except OSError:
        return MONOTONIC


class Clock:
    """The stamps' clock in CLOCK_MONOTONIC, by straight lines from anchor to anchor."""

    def __init__(self, library: Library, number: int) -> None:
        self._library, self.number = library, number
        self._first, self._first_ns = self._stamp, self._ns = library.moment(number)
        time.sleep(0.002)
        self.tick()

    def tick(self) -> None:
        """Set an anchor. Events taken since the last one lie between the two."""
        self._from, self._from_ns = self._stamp, self._ns
        self._stamp, self._ns = self._library.moment(self.number)
        self._ns_per_stamp = (self._ns - self._from_ns) / max(1, self._stamp - self._from)

    def at(self, stamp: int) -> int:
        """CLOCK_MONOTONIC ns of one stamp of any time since this was made: counted back from now, at the rate of all that time.

        The line of `line` leads astray there: the last two anchors can be 2 ms apart, and seconds ago.
        """
        now, now_ns = self._library.moment(self.number)
        since = (now - stamp + (1 << 47) & _LOW_48) - (1 << 47)
        return now_ns - round(since * (now_ns - self._first_ns) / max(1, now - self._first))

    @property
    def ns_per_stamp(self) -> float:
        """At the rate of all the time since this was made."""
        return (self._ns - self._first_ns) / max(1, self._stamp - self._first) if self.number == TSC else 1.0

    @property
    def now_ns(self) -> int:
        """CLOCK_MONOTONIC ns of the last anchor."""
        return self._ns

    @property
    def line(self) -> Line:
        """Where stamps of about the time between the last two anchors lie; only their low 48 bits count."""
        return Line(self._from, self._from_ns, self._ns_per_stamp if self.number == TSC else 1.0)
