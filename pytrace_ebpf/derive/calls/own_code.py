"""Which functions are the program's own code: the one place that decides it for functions of a trace (trace/libraries.py says it of a file)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.rebuild.answers import EVENT_LOOP, FOREIGN
from pytrace_ebpf.trace.libraries import in_library

# Modules of libraries whose functions wait for whatever is to do next, on behalf of all of the program.
OF_COROUTINES = ("asyncio.base_events", "asyncio.runners", "trio._core._run", "twisted.internet.base")
"""Those on whose thread nothing else goes on while what they called does."""
EVENT_LOOPS = (*OF_COROUTINES, "socketserver")

Bools = npt.NDArray[np.bool_]


def own(functions: pd.DataFrame) -> Bools:
    """Mask of the program's own functions: written in Python, and neither in a folder of libraries nor brought along by the interpreter."""
    return in_python(functions) & ~of_distinct(functions["file"], in_library)


def foreign(functions: pd.DataFrame) -> npt.NDArray[np.uint8]:
    """By func_id FOREIGN where a function is not own(), and EVENT_LOOP where that is one's (rebuild.answers); of functions that there are not, 0."""
    what = np.where(own(functions), 0, FOREIGN).astype(np.uint8)
    what[among_loops(functions, EVENT_LOOPS) & (what != 0)] |= EVENT_LOOP
    out = np.zeros(int(functions["func_id"].max()) + 1 if len(functions) else 0, np.uint8)
    out[functions["func_id"].to_numpy()] = what
    return out


def among_loops(functions: pd.DataFrame, loops: tuple[str, ...]) -> Bools:
    """Mask of the functions of modules that are `loops`, but for the modules' own bodies, which are a part of an import."""
    return (functions["module"].isin(loops) & (functions["name"] != "<module>")).to_numpy(bool)


def in_python(functions: pd.DataFrame) -> Bools:
    """Mask of those that are written in Python."""
    return (functions["function_layer"] == "python").to_numpy(dtype=bool)


def of_distinct(names: "pd.Series[Any]", holds: Callable[[str], bool]) -> Bools:
    """Of which of the names something holds, each asked for once."""
    code, distinct = pd.factorize(names)
    return np.append([holds(name) for name in distinct], False)[code].astype(bool)
