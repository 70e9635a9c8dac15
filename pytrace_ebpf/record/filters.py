"""Which calls are recorded: by module or path, and by depth; and of which what they were given. The agent applies the same rules in the target."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Filters:
    """Patterns as in a shell, of modules or, with a slash, of paths. A package stands for all that is in it."""

    include: tuple[str, ...] = ()  # empty: everything
    exclude: tuple[str, ...] = ()  # wins over include
    max_depth: int = 0  # of the recorded calls; 0: however deep
    c_calls: bool = False  # those of what is written in C as well
    lines: str | None = None  # exact: the lines that functions come to as well
    lines_of: tuple[str, ...] = ()  # of these functions alone, by patterns as of Observed; empty: of all
    opcodes: str | None = None  # exact: the instructions that functions execute are counted
    opcodes_of: tuple[str, ...] = ()  # as lines_of

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude or self.max_depth)

    def wants(self, file: str, module: str) -> bool:
        """Whether calls of a function in this file and module are recorded."""
        return (not self.include or _matches(self.include, file, module)) and not _matches(self.exclude, file, module)


# Names, in any case, of what is nobody's business.
REDACTED = (
    "*password*", "*passwd*", "*passphrase*", "pwd", "*_pwd", "*secret*", "*token*", "*credential*", "*authorization*", "auth", "*_auth",
    "*cookie*", "key", "*_key", "*apikey*",
)  # fmt: skip


@dataclass(frozen=True)
class Observed:
    """Functions whose arguments and results are recorded, by patterns as Filters has them or of MODULE.QUALNAME; and names of what is redacted."""

    args: tuple[str, ...] = ()
    redact: tuple[str, ...] = REDACTED

    def __bool__(self) -> bool:
        return bool(self.args)

    def wants(self, file: str, module: str, qualname: str, is_bare: bool) -> bool:
        """Whether values of this function are recorded; `is_bare`: its class is not known, as before 3.11, so what a pattern has of it is left open."""
        whole = f"{module}.{qualname}"
        names = [pattern for pattern in self.args if "/" not in pattern]
        return (
            _matches(self.args, file, module)
            or any(fnmatchcase(whole, pattern) for pattern in names)
            or (is_bare and any(_matches_bare(pattern, module, qualname) for pattern in names))
        )

    def hides(self, name: str) -> bool:
        """Whether of what has this name only the type is recorded."""
        return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.redact)


NOTHING = Observed()


def _matches(patterns: tuple[str, ...], file: str, module: str) -> bool:
    parents = module.split(".")
    modules = [".".join(parents[:end]) for end in range(1, len(parents) + 1)]
    return any(fnmatchcase(file, pattern) if "/" in pattern else any(fnmatchcase(name, pattern) for name in modules) for pattern in patterns)


def _matches_bare(pattern: str, module: str, name: str) -> bool:
    head, dot, last = pattern.rpartition(".")
    if not dot or not fnmatchcase(name, last):
        return False
    parts = head.split(".")
    return any(fnmatchcase(module, ".".join(parts[:end])) for end in range(1, len(parts) + 1))
