"""Why a program that was started has no recorded call, in one sentence."""

from pathlib import Path

from pytrace_ebpf.record.elf import needed, read_binary


def why_silent(executable: str) -> str:
    """The reason as far as the file that was run tells it, and what to do."""
    if not _is_python(Path(executable)):
        return (
            f"{executable} is not a Python, and the agent began in none that it started; if there is one, start it "
            "without the program around it, or attach to it: sudo pytrace-ebpf attach --pid PID"
        )
    return (
        f"the agent did not begin in {executable}: either none of the program's own code ran, or the agent was not "
        "loaded, as it is not into a static or setuid program, nor where LD_PRELOAD is taken out of the environment; "
        "attach to such a program while it runs: sudo pytrace-ebpf attach --pid PID"
    )


def _is_python(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if read_binary(file).symbol("Py_GetVersion"):
                return True
            return any(name.startswith("libpython") for name in needed(file))
    except (OSError, ValueError):  # gone, or a script
        return False
