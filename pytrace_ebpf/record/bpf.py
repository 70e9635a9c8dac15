"""The only place that touches bcc: compile and load the programs of probes/, attach uprobes, read maps."""

import ctypes
import os
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import pytrace_ebpf
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record import host

_INCLUDE = re.compile(r'#include "([^"]+)"')
_PROGRAM_INFO, _RECURSION_MISSES = 216, 208  # struct bpf_prog_info: as much of it as is needed, and where that count is


def probes_directory() -> Path:
    """Where the C sources lie: inside the installed package, or beside it in a checkout."""
    package = Path(pytrace_ebpf.__file__).parent
    for candidate in (package / "probes", package.parent / "probes"):
        if (candidate / "events.h").exists():
            return candidate
    raise HostError("the installation has no probes/ folder; reinstall pytrace-ebpf (make install)")


def possible_cpus() -> int:
    """One more than the highest number a core of this host can have, online or not."""
    _bcc()
    from bcc.utils import get_possible_cpus

    return int(max(get_possible_cpus())) + 1


def _bcc() -> Any:
    tree = host.header_tree()
    if tree is not None:
        os.environ["BCC_KERNEL_SOURCE"] = str(tree)
    try:
        import bcc
    except ImportError as error:
        raise HostError(
            "bcc cannot be imported by this Python; install Debian's python3-bpfcc and use a virtual environment "
            "made with --system-site-packages (make demo does both)"
        ) from error
    return bcc


@contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """clang and libbpf write to file descriptor 2 themselves: keep that for the error."""
    lines: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile() as capture:
        os.dup2(capture.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            capture.seek(0)
            lines += capture.read().decode(errors="replace").splitlines()


def _with_includes(folder: Path, name: str) -> str:
    """A source with what it includes of `folder` in place: bcc rewrites map accesses in the main file alone."""
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate((folder / name).read_text().splitlines(), 1):
        included = _INCLUDE.fullmatch(line)
        lines += [_with_includes(folder, included[1]), f'#line {number + 1} "{name}"'] if included else [line]
    return "\n".join(lines) + "\n"


class Programs:
    """One compiled file of probes/ with its maps. Tracepoint programs in it are attached at once.

    `knobs` become -DNAME=value; True gives -DNAME. Raises HostError where the
    kernel or the headers refuse, with the first line of what they said.
    """

    def __init__(self, source: str, knobs: dict[str, object]) -> None:
        bcc = _bcc()
        folder = probes_directory()
        text = _with_includes(folder, source)
        flags = ["-w"]
        flags += [f"-D{name}" if value is True else f"-D{name}={value}" for name, value in knobs.items()]
        said: list[str] = []
        try:
            with _captured_stderr() as said:
                self._bpf = bcc.BPF(text=text, cflags=flags)
        except Exception as error:
            detail = next((line for line in said if "error" in line.lower()), str(error))
            raise HostError(f"the kernel or its headers refuse {source} ({detail.strip()}); see pytrace-ebpf doctor") from error
        self._kind = bcc.BPF.KPROBE
        self._library = bcc.libbcc.lib
        # bcc's Python wrapper leaves out ref_ctr_offset, the semaphore's place in the file.
        self._library.bpf_attach_uprobe.argtypes = [
            ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32,
        ]  # fmt: skip

    def attach_uprobe(self, function: str, path: str, offset: int, pid: int, semaphore: int) -> int:
        """Attach a program to `offset` of the file at `path` in one process; returns a descriptor to close().

        The kernel raises the 16-bit counter at file offset `semaphore` (0 = none)
        in that process, and lowers it when the descriptor is closed, however that happens.
        Raises OSError.
        """
        program = self._bpf.load_func(function.encode(), self._kind)
        name = f"p_{function}_{pid}_{offset:x}".encode()
        with _captured_stderr() as said:
            descriptor = self._library.bpf_attach_uprobe(program.fd, 0, name, path.encode(), offset, pid, semaphore)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "; ".join(said) or "the kernel refused the uprobe")
        return int(descriptor)

    def detach(self, descriptor: int) -> None:
        """Close what attach_uprobe returned; the kernel lowers the semaphore."""
        self._library.bpf_close_perf_event_fd(descriptor)

    def instructions(self, function: str) -> bytes:
        """The BPF instructions of a program, which refer to this object's maps."""
        return bytes(self._bpf.dump_func(function.encode()))

    def table(self, name: str) -> Any:
        """A map by name, as bcc shows it."""
        return self._bpf[name]

    def dtype(self, struct: str) -> np.dtype:
        """The NumPy dtype of a struct of events.h, from the compiler's own layout; `char name[n]` is bytes of length n."""
        layout = np.dtype(self._bpf[f"layout_{struct}"].Leaf)
        fields = layout.fields or {}
        return np.dtype(
            {
                "names": list(fields),
                "formats": [f"S{part[0].shape[0]}" if part[0].base == np.dtype("S1") else part[0] for part in fields.values()],
                "offsets": [part[1] for part in fields.values()],
                "itemsize": layout.itemsize,
            }
        )

    def losses(self) -> np.ndarray:
        """Cumulative loss counts, int64, shape (LOSS_CLASSES,)."""
        table = self._bpf["losses"]
        return np.array([list(cpu.count) for cpu in table[table.Key(0)]], np.int64).sum(axis=0)

    def missed(self, programs: Iterable[str]) -> int:
        """How often the kernel did not call these programs, as one was already running on that core (counted from Linux 5.12 on).

        A task that is preempted in the middle of a bpf() call counts as one, so another user of BPF can cause it.
        """
        total = 0
        for name in programs:
            info = ctypes.create_string_buffer(_PROGRAM_INFO)
            self._library.bpf_obj_get_info(self._bpf.funcs[name.encode()].fd, info, ctypes.byref(ctypes.c_uint32(_PROGRAM_INFO)))
            total += struct.unpack_from("<Q", info, _RECURSION_MISSES)[0]
        return total

    def close(self) -> None:
        """Detach the tracepoints and free programs and maps."""
        self._bpf.cleanup()
