"""Which functions of a trace each group of patterns fits, once per function."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from pytrace_ebpf.derive.calls import entry_points
from pytrace_ebpf.derive.sinks.tasks import ASYNC_GENERATOR, COROUTINE
from pytrace_ebpf.patterns import Mains, fits_called, fits_package, nearest
from pytrace_ebpf.rules import rule as rules
from pytrace_ebpf.trace.reader import Trace

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]


class Functions:
    """Those of a trace. Masks are by func_id, with one False more at their end, which stands for a function that is not known (-1)."""

    def __init__(self, trace: Trace) -> None:
        self.table = trace.functions()
        self.count = int(self.table["func_id"].max()) + 1 if len(self.table) else 0
        processes = trace.processes()
        earlier = [command for own in processes["earlier_commands"] if own is not None for command in own] if len(processes) else []
        self._asked = trace.request_patterns
        self._mains = Mains([*processes["command"].astype(str), *earlier])
        self._fits: dict[tuple[str, bool], Bools] = {}

    @cached_property
    def _named(self) -> list[tuple[int, str, str, str, bool]]:
        """func_id, file, module, qualified name, and whether it is the main program's."""
        rows = self.table[["func_id", "file", "module", "qualname"]].itertuples(index=False)
        return [(int(func_id), file, module, qualname, self._mains.have(file)) for func_id, file, module, qualname in rows]

    def mask(self, chosen: Iterable[int]) -> Bools:
        """Of these func_ids."""
        out = np.zeros(self.count + 1, np.bool_)
        out[list(chosen)] = True
        out[self.count :] = False
        return out

    @cached_property
    def coroutines(self) -> Bools:
        """Coroutines and asynchronous generators."""
        flags = self.table["flags"].to_numpy(np.int64) & (COROUTINE | ASYNC_GENERATOR)
        return self.mask(self.table["func_id"].to_numpy()[flags != 0])

    @cached_property
    def in_python(self) -> Bools:
        """Those that are written in Python."""
        return self.mask(self.table["func_id"].to_numpy()[(self.table["function_layer"] == "python").to_numpy(bool)])

    def fitting(self, group: rules.Group, packages: bool = False) -> Bools:
        """Those that one of the patterns fits; `packages`: or whose folder does."""
        out = np.zeros(self.count + 1, np.bool_)
        for pattern in group:
            out |= self._fitting(pattern, packages)
        return out

    def _fitting(self, pattern: str, packages: bool) -> Bools:
        key = pattern, packages
        if key not in self._fits:
            special = {rules.COROUTINE: lambda: self.coroutines, rules.REQUEST: lambda: self.requests}
            self._fits[key] = special[pattern]() if pattern in special else self.mask(self._found(pattern, packages))
        return self._fits[key]

    @cached_property
    def requests(self) -> Bools:
        """Those that answer requests: of usual servers and frameworks, and what `--request` named."""
        return self.mask(entry_points.kinds(self.table).index.union(entry_points.asked(self.table, self._asked).index))

    def named(self, expression: str) -> Bools:
        """Those whose qualified name a regular expression fits."""
        return self.mask(self.table["func_id"].to_numpy()[self.table["qualname"].astype(str).str.fullmatch(expression).to_numpy(bool)])

    def _found(self, pattern: str, packages: bool) -> list[int]:
        return [
            func_id
            for func_id, file, module, qualname, is_main in self._named
            if fits_called(pattern, file, module, qualname, is_main) or (packages and file and fits_package(pattern, file, module, is_main))
        ]

    def nearest(self, pattern: str) -> list[str]:
        """What may have been meant by a pattern that fits none."""
        return nearest(pattern, [(file, module, qualname) for _, file, module, qualname, _ in self._named])

    @property
    def heads(self) -> set[str]:
        """The first names of the modules of functions in Python."""
        return {module.partition(".")[0] for _, file, module, _, _ in self._named if file}


def by_id(table: pd.DataFrame) -> pd.DataFrame:
    """Functions by func_id, as plain objects."""
    return table.set_index("func_id")[["qualname", "module", "file", "first_line"]].astype(object)
