"""What can go wrong for a user: one sentence each, and the exit code it maps to."""

DEBUG = "PYTRACE_DEBUG"  # set: a traceback instead of a sentence


class PytraceError(Exception):
    """Base of every error a user can fix. `str(error)` is one sentence; `exit_code` is the command's."""

    exit_code = 1


class UsageError(PytraceError):
    """The command line does not make sense."""

    exit_code = 2


class TargetError(PytraceError):
    """The target cannot be traced."""

    exit_code = 3


class HostError(PytraceError):
    """This host cannot trace: privileges, kernel, missing packages."""

    exit_code = 4


class OutputError(HostError):
    """What a command prints cannot be written: the disk under standard output is full, or it is closed."""


class TraceError(PytraceError):
    """The trace directory is damaged or not a trace."""

    exit_code = 5


class DroppedError(TraceError):
    """A running recording dropped what was to be read (`--retain`): the trace is whole, and can be opened again."""
