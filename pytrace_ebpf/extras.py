"""Packages that only some uses need: what each is for, and how to install it."""

from importlib.util import find_spec

from pytrace_ebpf.errors import HostError

# By the name that is imported: the use, and the extra of pyproject.toml that brings it.
_EXTRAS = {
    **dict.fromkeys(("capstone", "cxxfilt", "psutil"), ("recording", "record")),
    "matplotlib": ("drawing pictures", "plots"),
    "duckdb": ("SQL", "sql"),
    "textual": ("the live view", "top"),
    "mcp": ("the server for assistants", "mcp"),
    "shtab": ("completion", "install"),
}


def require(name: str) -> None:
    """Raise ModuleNotFoundError, as an import would, where a package is missing that is imported only later."""
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def missing(error: ModuleNotFoundError) -> HostError | None:
    """What to say of a package that is not installed; None for one that none of our extras brings."""
    name = (error.name or "").partition(".")[0]
    if name not in _EXTRAS:
        return None
    use, extra = _EXTRAS[name]
    return HostError(f"{use} needs {name}, which is not installed; {install(extra)} brings it")


def install(extra: str) -> str:
    """The command that brings an extra."""
    return f"pip install 'pytrace-ebpf[{extra}]'"
