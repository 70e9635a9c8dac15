"""The process that compiles one file of probes/ with bcc: C on stdin, what record/kernel/bpf_object.py reads on stdout.

The only place that imports bcc. clang stays out of the tracer, which mostly finds its programs
compiled already.
"""

import base64
import ctypes
import json
import os
import platform
import struct
import sys
from collections.abc import Mapping
from typing import Any

# bcc's folder, last: what the tracer has comes first.
sys.path += sys.argv[1:]

import bcc
import numpy as np
from bcc.libbcc import lib

_LOAD_64, _MAP_DESCRIPTOR = 0x18, 1  # an instruction of two slots, and what its source register says that the number is
_CALL, _READS_ANYTHING = 0x85, (4, 45)  # BPF_FUNC_probe_read and _str
# Of libbcc, which bcc's own binding leaves out.
lib.bpf_num_tables.argtypes, lib.bpf_num_tables.restype = [ctypes.c_void_p], ctypes.c_size_t
lib.bpf_table_name.argtypes, lib.bpf_table_name.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_char_p
_MACHINE = {"arm64": "aarch64"}.get(os.environ.get("ARCH", ""), platform.machine())  # as bcc chooses its headers
_LAYOUT = "layout_"  # common.h: maps that give the layout of a struct


class Unloaded(bcc.BPF):  # type: ignore[misc]
    """bcc's object, which neither loads nor attaches what it compiled."""

    def _trace_autoload(self) -> None:
        pass


def described(dtype: np.dtype) -> Any:
    """A dtype as JSON; `char name[n]` is bytes of length n."""
    if dtype.subdtype:
        base, shape = dtype.subdtype
        return f"S{shape[0]}" if base == np.dtype("S1") else [described(base), list(shape)]
    if dtype.fields is None or dtype.names is None:
        return dtype.str
    return {
        "names": list(dtype.names),
        "formats": [described(dtype.fields[name][0]) for name in dtype.names],
        "offsets": [dtype.fields[name][1] for name in dtype.names],
        "itemsize": dtype.itemsize,
    }


def layout(text: bytes) -> Any:
    """bcc's description of a type, as JSON of a dtype."""
    return described(np.dtype(bcc.BPF._decode_table_type(json.loads(text))))


def instructions(program: bytes, places: Mapping[int, int]) -> str:
    """A program's code, in base64, with the place of a map in `maps` where bcc has put its descriptor. places: descriptor -> place.

    Raises ValueError for one that calls bpf_probe_read(): what address it reads may be a traced program's choice, and it reads the kernel's memory, too.
    """
    code = bytearray(program)
    at = 0
    while at < len(code):
        opcode, registers, number = struct.unpack_from("<BBxxi", code, at)
        if opcode == _LOAD_64 and registers >> 4 == _MAP_DESCRIPTOR:
            struct.pack_into("<i", code, at + 4, places[number])
        elif opcode == _CALL and not registers >> 4 and number in _READS_ANYTHING:
            raise ValueError("error: bcc made bpf_probe_read() of a read of a process's memory")
        at += 16 if opcode == _LOAD_64 else 8
    return base64.b64encode(code).decode()


def main(*_folders: str) -> None:
    """Compile what stands on stdin."""
    output = os.dup(1)
    os.dup2(2, 1)  # whatever clang says
    compiled = Unloaded(text=sys.stdin.buffer.read(), cflags=["-w", f"-DPROCESSOR_{_MACHINE}"])
    module = compiled.module
    maps: list[dict[str, Any]] = []
    structs: dict[str, Any] = {}
    places: dict[int, int] = {}
    for number in range(lib.bpf_num_tables(module)):
        raw = lib.bpf_table_name(module, number)
        name = raw.decode()
        key, value = layout(lib.bpf_table_key_desc(module, raw)), layout(lib.bpf_table_leaf_desc(module, raw))
        if name.startswith(_LAYOUT):
            structs[name.removeprefix(_LAYOUT)] = value
            continue
        places[lib.bpf_table_fd(module, raw)] = len(maps)
        maps.append(
            {
                "name": name,
                "kind": lib.bpf_table_type_id(module, number),
                "key": key,
                "value": value,
                "entries": lib.bpf_table_max_entries_id(module, number),
                "flags": lib.bpf_table_flags_id(module, number),
            }
        )
    names = [lib.bpf_function_name(module, number) for number in range(lib.bpf_num_functions(module))]
    programs = {name.decode(): instructions(compiled.dump_func(name), places) for name in names}
    with os.fdopen(output, "w") as file:
        json.dump({"maps": maps, "structs": structs, "programs": programs}, file)
