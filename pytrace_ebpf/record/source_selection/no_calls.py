"""Why a launched program has no recorded calls, in one sentence."""

import os

from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.process.target import needed, parse
from pytrace_ebpf.record.rights.program_files import in_time, regular


def why_no_calls(executable: str) -> str:
    """The reason as far as the file that was run shows it, and what to do."""
    if not _is_python(executable):
        return (
            f"{executable} is not a CPython, and the agent was loaded into none of its children; if one of them is one, start it "
            "directly, or attach to it: sudo pytrace-ebpf attach --pid PID"
        )
    return (
        f"the agent did not start in {executable}: either none of the program's own code ran, or the agent was not "
        "loaded, as it is not into a static or setuid program, nor into one with musl in place of glibc, nor where LD_PRELOAD is taken out of the "
        "environment; "
        "attach to such a program while it runs: sudo pytrace-ebpf attach --pid PID"
    )


def _is_python(path: str) -> bool:
    try:
        file = in_time(lambda: regular(Descriptor(os.open(path, os.O_PATH))))
        return bool(parse(file).symbol("Py_GetVersion")) or any(name.startswith("libpython") for name in needed(file))
    except (OSError, ValueError):  # gone, or a script; TimeoutError is an OSError
        return False
