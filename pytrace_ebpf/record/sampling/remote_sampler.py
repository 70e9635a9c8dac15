"""One process whose threads are looked at from outside, by the library probes/remote_sampler; remote_sampler.h says what everything is."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pytrace_ebpf import native_library
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.agent.agent_library import dtypes_of
from pytrace_ebpf.record.cpython.frames import HEAD_BEFORE_MAIN
from pytrace_ebpf.record.cpython.layout import Layout
from pytrace_ebpf.record.cpython.lines import HASH
from pytrace_ebpf.record.kernel.probe_sources import probes_directory
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import Target, living_threads, own_id
from pytrace_ebpf.record.scheduling.cputime import NS_PER_TICK, queue_time_is_known

_ABSENT = -(1 << 31)
_SAMPLES, _STACKS, _FRAMES = 1 << 14, 1 << 11, 1 << 16  # room for what is found between two collections
_MOST_NS = 50_000_000  # of one look; the threads that are left are looked at first the next time


class Library:
    """The compiled half."""

    def __init__(self, path: Path) -> None:
        """Raises HostError where it is missing or cannot be loaded."""
        try:
            library = native_library.load(path)
        except OSError as error:
            raise HostError(f"what samples without eBPF is not built ({error}); run `make` in the source, or reinstall pytrace-ebpf") from error
        self.open, self.close = library.remote_sampler_open, library.remote_sampler_close
        self.gil, self.threads, self.look, self.finish = (
            library.remote_sampler_gil,
            library.remote_sampler_threads,
            library.remote_sampler_look,
            library.remote_sampler_finish,
        )
        pointer = ctypes.c_void_p
        self.open.argtypes, self.open.restype = [pointer], pointer
        self.close.argtypes, self.close.restype = [pointer], None
        self.gil.argtypes, self.gil.restype = [pointer, ctypes.c_uint64, ctypes.c_uint64], None
        self.threads.argtypes, self.threads.restype = [pointer, pointer, pointer, ctypes.c_int], ctypes.c_int
        self.look.argtypes, self.look.restype = [pointer, pointer, ctypes.c_uint64, pointer], ctypes.c_int
        self.finish.argtypes, self.finish.restype = [pointer, pointer, ctypes.c_int], None
        library.remote_sampler_layout.restype = ctypes.c_char_p
        self.dtypes = dtypes_of(library.remote_sampler_layout().decode())


@cache
def library() -> Library:
    """The library, loaded once. Raises HostError."""
    return Library(probes_directory() / "remote_sampler" / "remote_sampler.so")


class RemoteSampler:
    """The threads of one program, looked at about once a period: samples and stacks as remote_sampler.h has them."""

    def __init__(self, target: Target, layout: Layout, runtime: int, period_ns: int) -> None:
        """Raises OSError where the process has ended, or may not be looked into."""
        self._library = library()
        self._target, self._task = target, Descriptor(target.process.open("task"))
        self._renumbered = "pid" in target.process.foreign_namespaces
        dtypes = self._library.dtypes
        self.samples, self.stacks = np.zeros(_SAMPLES, dtypes["sample"]), np.zeros(_STACKS, dtypes["stack"])
        self.frames = np.zeros(_FRAMES, dtypes["frame"])
        self._found = np.zeros(1, dtypes["found"])
        for name, room in (("sample", self.samples), ("stack", self.stacks), ("frame", self.frames)):
            self._found[f"{name}s"], self._found[f"{name}_room"] = room.ctypes.data, len(room)
        place = np.zeros(1, dtypes["place"])
        for name, value in _place(target, layout, runtime).items():
            place[name] = value
        place["period_ns"], place["ns_per_tick"] = period_ns, 0 if queue_time_is_known() else NS_PER_TICK
        place["pid"], place["task"], place["memory"] = target.pid, self._task.fileno(), target.process.memory_to_read.fileno()
        self._strangers, self._known_strangers = ctypes.c_int(), 0
        self._gil = False
        self.ended = False
        self._self = self._library.open(place.ctypes.data)
        if not self._self:
            raise MemoryError
        self.refresh()

    def refresh(self) -> int:
        """See which threads there are, and where the GIL is. Returns how many they are."""
        if not self._gil:
            gil, end = self._target.gil_range()
            self._library.gil(self._self, gil, end)
            self._gil = gil > 0
        tids = living_threads(self._target.pid)
        own = {own_id(self._target.pid, tid): tid for tid in tids} if self._renumbered else {tid: tid for tid in tids}
        pairs = np.array(sorted(own.items()), np.int32).reshape(-1, 2)
        names, here = pairs[:, 0].copy(), pairs[:, 1].copy()
        self._known_strangers = self._strangers.value
        return int(self._library.threads(self._self, names.ctypes.data, here.ctypes.data, len(pairs)))

    def look(self) -> None:
        """Look at all threads. Where their program is gone, what was known of them by then is found, and `ended` is true."""
        if self.ended:
            return
        if not self._library.look(self._self, self._found.ctypes.data, _MOST_NS, ctypes.byref(self._strangers)):
            self.finish(ended=True)

    def finish(self, ended: bool = False) -> None:
        """Find the waits that have not ended. `ended`: the threads have, since the last look."""
        if not self.ended:
            self.ended = True
            self._library.finish(self._self, self._found.ctypes.data, ended)

    @property
    def has_new_threads(self) -> bool:
        """Whether the interpreter has threads since the last look that it had not at the last refresh()."""
        return self._strangers.value > self._known_strangers

    @property
    def has_new_stacks(self) -> bool:
        """Whether stacks were found since the last collect()."""
        return int(self._found["stack_count"][0]) > 0

    @property
    def is_filling(self) -> bool:
        """Whether it is time to collect what was found."""
        return any(int(self._found[f"{name}_count"][0]) > int(self._found[f"{name}_room"][0]) // 2 for name in ("sample", "stack", "frame"))

    def collect(self) -> tuple[np.ndarray, list[tuple[int, bool, np.ndarray]]]:
        """(samples; of each stack that is new its number, whether it has more frames, and these) since the last time."""
        samples = self.samples[: int(self._found["sample_count"][0])].copy()
        stacks = self.stacks[: int(self._found["stack_count"][0])].tolist()
        frames = self.frames[: int(self._found["frame_count"][0])].copy()
        for name in ("sample", "stack", "frame"):
            self._found[f"{name}_count"] = 0
        return samples, [(number, bool(deep), frames[first : first + count]) for number, first, count, deep in stacks]

    @property
    def losses(self) -> dict[str, int]:
        """Cumulative counts by loss class."""
        names = {"sample_ring": "lost", "sample_torn": "torn", "stack_depth": "deep"}
        return {name: int(self._found[field][0]) for name, field in names.items()}

    def close(self) -> None:
        """Let go of the process."""
        self._library.close(self._self)
        self._self = None


def _place(target: Target, layout: Layout, runtime: int) -> dict[str, Any]:
    """Fields of struct place."""
    running, values = layout.frame_running or (_ABSENT, b"")
    code_type = target.binary.symbol("PyCode_Type")
    ends = (layout.frame_previous + 8, layout.frame_code + 8, layout.frame_position + 8, (layout.frame_owner or 0) + 1, running + 1)
    names = (
        "interpreter_next", "interpreter_threads", "thread_status", "thread_next", "thread_pthread", "thread_native_id", "thread_frame", "thread_datastack", "cframe_frame",
        "frame_previous", "frame_code", "frame_position", "frame_owner", "owner_shim", "code_file", "code_name", "code_first_line",
        "code_start", "code_bytes",
    )  # fmt: skip
    return {
        **{name: _ABSENT if (value := getattr(layout, name)) is None else value for name in names},
        "first": runtime + layout.runtime_main_interpreter - HEAD_BEFORE_MAIN * (layout.interpreter_next is not None),
        "code_type": code_type + target.bias if code_type else 0,
        "frame_size": max(ends),
        "frame_running": running,
        "running_values": sum(1 << value for value in values),
        "position_unit": layout.position_unit,
        "ends_with_shim": layout.version >= (3, 12),
        "string_hash": layout.string_length + HASH,
    }
