"""Where CPython's structures keep what the tracer reads: one Layout of byte offsets per minor version, x86-64.

Offsets are from the headers of each version (gcc, offsetof, Py_BUILD_CORE). From 3.13 on a process carries its own
table, _Py_DebugOffsets at the start of _PyRuntime, which is right for every build and is taken where it is there.
"""

import struct
from dataclasses import dataclass, replace

_COOKIE = b"xdebugpy"


@dataclass(frozen=True)
class Layout:
    """Byte offsets within each structure; None for a field that the version does not have."""

    version: tuple[int, int]
    # _PyRuntimeState
    runtime_main_interpreter: int
    runtime_initialized: int  # an int: not 0 from before `site` is imported until it is finalized, as Py_IsInitialized() says
    runtime_gil: tuple[int, int] | None  # first and last byte + 1 of the GIL's locks, up to 3.11
    # the GIL
    gil_holder: int  # from its first byte as Target.gil_range() has it: last_holder, with `locked` behind it
    # PyInterpreterState
    interpreter_threads: int
    interpreter_gil: int | None  # pointer to the GIL, from 3.12 on
    # PyThreadState
    thread_next: int
    thread_pthread: int  # thread_id: the pthread_t
    thread_native_id: int | None
    thread_frame: int  # pointer to the innermost frame, or to the _PyCFrame of 3.11 and 3.12
    cframe_frame: int | None
    # PyFrameObject up to 3.10, then _PyInterpreterFrame
    frame_previous: int
    frame_code: int  # the low two bits are a tag on 3.14+
    frame_running: tuple[int, bytes] | None  # a byte and its values while the frame is on a stack, up to 3.10
    frame_stacktop: int | None  # None from 3.10 on
    frame_position: int  # f_lasti, then prev_instr or instr_ptr
    frame_owner: int | None
    owner_shim: int  # owners from this value on are entries from C, no Python frames
    # PyCodeObject
    code_file: int
    code_name: int
    code_qualname: int | None
    code_first_line: int
    code_flags: int
    code_start: int | None  # co_code_adaptive; _co_firsttraceable is 16 bytes before it
    # what tells that a generator yields when its probe fires, where frame_stacktop does not
    generator_state: int | None  # from the frame to f_state or gi_frame_state: a byte, -1 once it is suspended
    yield_opcode: int | None  # the instruction behind which it stands
    # str
    string_length: int
    string_state: int
    string_data: int  # characters of an ASCII str
    string_data_wide: int  # characters of any other compact str


_V38 = Layout(
    version=(3, 8),
    runtime_main_interpreter=40,
    runtime_initialized=12,
    runtime_gil=(1168, 1360),
    gil_holder=-8,
    interpreter_threads=8,
    interpreter_gil=None,
    thread_next=8,
    thread_pthread=176,
    thread_native_id=None,
    thread_frame=24,
    cframe_frame=None,
    frame_previous=24,
    frame_code=32,
    frame_running=(116, b"\x01"),  # f_executing
    frame_stacktop=72,
    frame_position=104,
    frame_owner=None,
    owner_shim=256,
    code_file=104,
    code_name=112,
    code_qualname=None,
    code_first_line=40,
    code_flags=36,
    code_start=None,
    generator_state=None,
    yield_opcode=None,
    string_length=16,
    string_state=32,
    string_data=48,
    string_data_wide=72,
)
_V39 = replace(_V38, version=(3, 9), runtime_gil=(368, 560))
_V310 = replace(
    _V39,
    version=(3, 10),
    frame_running=(108, b"\x00\x02"),  # f_state: executing, unwinding
    frame_stacktop=None,
    frame_position=96,
    generator_state=108,
)
_V311 = replace(
    _V310,
    version=(3, 11),
    runtime_main_interpreter=48,
    runtime_initialized=16,
    runtime_gil=(376, 568),
    interpreter_threads=16,
    thread_pthread=152,
    thread_native_id=160,
    thread_frame=56,
    cframe_frame=8,
    frame_previous=48,
    frame_running=None,
    frame_position=56,
    frame_owner=69,
    owner_shim=3,
    code_file=112,
    code_name=120,
    code_qualname=128,
    code_first_line=72,
    code_flags=48,
    code_start=184,
    generator_state=-5,
)
_V312 = replace(
    _V311,
    version=(3, 12),
    runtime_gil=None,
    gil_holder=8,
    interpreter_threads=72,
    interpreter_gil=384,
    thread_pthread=136,
    thread_native_id=144,
    cframe_frame=0,
    frame_previous=8,
    frame_code=0,
    frame_owner=70,
    code_first_line=68,
    code_start=192,
    generator_state=None,  # there are no probes, and it is set behind those of 3.15
    string_data=40,
    string_data_wide=56,
)
_V313 = replace(
    _V312,
    version=(3, 13),
    runtime_main_interpreter=640,
    runtime_initialized=600,
    interpreter_threads=7344,
    interpreter_gil=16,
    thread_pthread=152,
    thread_native_id=160,
    thread_frame=72,
    cframe_frame=None,
    code_start=200,
)
_V314 = replace(_V313, version=(3, 14), runtime_main_interpreter=816, runtime_initialized=776, frame_owner=74, code_start=208)
_V315 = replace(
    _V314,
    version=(3, 15),
    runtime_main_interpreter=944,
    runtime_initialized=904,
    interpreter_threads=7336,
    thread_pthread=176,
    thread_native_id=184,
    yield_opcode=119,
)
_LAYOUTS = {layout.version: layout for layout in (_V38, _V39, _V310, _V311, _V312, _V313, _V314, _V315)}

# Field of Layout -> its position in _Py_DebugOffsets on 3.13, 3.14, 3.15.
_POSITIONS = {
    "interpreter_threads": (72, 72, 72),
    "interpreter_gil": (112, 120, 120),
    "thread_next": (168, 192, 192),
    "thread_frame": (184, 208, 208),
    "thread_pthread": (192, 216, 240),
    "thread_native_id": (200, 224, 248),
    "frame_previous": (232, 256, 320),
    "frame_code": (240, 264, 328),
    "frame_owner": (264, 288, 352),
    "code_file": (280, 320, 384),
    "code_name": (288, 328, 392),
    "code_qualname": (296, 336, 400),
    "code_first_line": (312, 352, 416),
    "string_state": (544, 624, 720),
    "string_length": (552, 632, 728),
    "string_data": (560, 640, 736),
}
_INTERPRETERS_HEAD = 40
_ARGCOUNT = (320, 360, 424)
_GIL = (120, 128, 128)  # the main interpreter's own
_GIL_HOLDER = (144, 152, 152)


def layout_for(version: tuple[int, ...], debug_offsets: bytes = b"") -> Layout | None:
    """The layout of a Python version (its first two numbers count), None for one that is not known.

    `debug_offsets`: the first bytes of the process's _PyRuntime; where they are _Py_DebugOffsets they win.
    """
    layout = _LAYOUTS.get((version[0], version[1]))
    if layout is None or version[1] < 13 or not debug_offsets.startswith(_COOKIE):
        return layout
    column = version[1] - 13

    def at(position: int) -> int:
        return int(struct.unpack_from("<Q", debug_offsets, position)[0])

    fields = {name: at(positions[column]) for name, positions in _POSITIONS.items()}
    return replace(
        layout,
        **fields,  # type: ignore[arg-type]
        runtime_main_interpreter=at(_INTERPRETERS_HEAD) + 8,  # `main` follows `head`
        runtime_initialized=at(_INTERPRETERS_HEAD) - 32,  # seven fields lie between
        gil_holder=at(_GIL_HOLDER[column]) - at(_GIL[column]),
        code_flags=at(_ARGCOUNT[column]) - 4,  # co_flags is just before co_argcount
        string_data_wide=fields["string_data"] + 16,  # the UTF-8 copy's length and pointer lie between
    )


def is_free_threaded(debug_offsets: bytes) -> bool:
    """Whether _Py_DebugOffsets (or b"") are those of a build without a GIL."""
    return debug_offsets.startswith(_COOKIE) and struct.unpack_from("<Q", debug_offsets, 16)[0] != 0
