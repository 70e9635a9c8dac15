"""CPython's instructions: their names by version, and which of them are specialized forms of which."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = Path(__file__).with_name("opcodes.json")  # scripts/opcodes.py
STATES = ("specialized", "generic", "unknown", "never")
SPECIALIZED, GENERIC, UNKNOWN, NEVER = range(4)
# Other forms of these come of their first execution or of what stands beside them, not of what they meet.
_AT_ONCE = ("RESUME", "LOAD_CONST", "JUMP_BACKWARD", "EXTENDED_ARG", "LOAD_FAST", "STORE_FAST")


@cache
def _known() -> Any:
    return json.loads(_NAMES.read_text())


def _of(version: str) -> Any:
    return _known().get(".".join(version.split(".")[:2]), {"names": {}, "generic": {}})


def name_of(version: str, opcode: int) -> tuple[str, str]:
    """(name, that of the instruction it is a specialization of, else the name) in a version of CPython such as 3.11.2."""
    known = _of(version)
    name = known["names"].get(str(opcode), f"opcode {opcode}")
    return name, known["generic"].get(name, name)


def specializable(version: str) -> set[str]:
    """Names of the general instructions of that version which CPython specializes by what they meet."""
    return set(_of(version)["generic"].values()) - set(_AT_ONCE)


@dataclass(frozen=True)
class Instructions:
    """Those of a version. `names`: object, shape (256,), of str."""

    names: np.ndarray
    _state: np.ndarray  # int8, shape (256, 256), by the general instruction and what stood in its place

    def states(self, opcodes: np.ndarray, forms: np.ndarray) -> np.ndarray:
        """Indexes into STATES. `opcodes`: general instructions, uint8; `forms`: what stood in their places, 0 not known, uint8."""
        return self._state[opcodes, forms]


@cache
def instructions(version: str) -> Instructions:
    """Of a version of CPython such as 3.11.2."""
    names = [name_of(version, number) for number in range(256)]
    adaptive = specializable(version)
    state = np.full((256, 256), NEVER, np.int8)
    for number, (name, general) in enumerate(names):
        if name in adaptive and name == general:
            state[number] = UNKNOWN
            state[number, number] = GENERIC
            for form, (special, of) in enumerate(names):
                if form != number and of == name:
                    state[number, form] = GENERIC if special.endswith("_ADAPTIVE") else SPECIALIZED
    return Instructions(np.array([name for name, _ in names], object), state)
