"""What an engine says of moments that it is asked for: the innermost call, and which function of the program's own code that is in."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

_Ids: TypeAlias = npt.NDArray[np.integer[Any]]
LIBRARY, FOREIGN, EVENT_LOOP = 1, 2, 4
"""Of a function, for Engine.ask(): others wait through it; it is not of the program's own code; it waits for whatever is to do next."""

Library: TypeAlias = npt.NDArray[np.bool_] | npt.NDArray[np.uint8]


class Answers(NamedTuple):
    """Of Engine.ask()."""

    call_id: npt.NDArray[np.int64]
    func_id: _Ids
    entry: _Ids
    caller: _Ids
    own: _Ids
    own_line: _Ids
    own_called: _Ids
