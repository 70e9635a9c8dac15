"""The price of a call and its return by each source, ns of the program's CPU time: expected at first, then measured on this machine, and one for all.

What was measured is kept for the next recordings of that interpreter on this host (program_cache.py), so that what is expected, what the progress says and what the
report says come from one number. Of the measurements the least hold, of an interpreter alone and with a source: other work only adds to them.
"""

import json
import os
import platform
from contextlib import suppress

from pytrace_ebpf.record.cost.measured import Measured
from pytrace_ebpf.record.kernel import program_cache
from pytrace_ebpf.record.process.target import Target
from pytrace_ebpf.record.source_selection.price import expected_ns

_NAME = "prices"
_MOST = 200  # interpreters
_SAME = 3.0  # times as much as before: then it is another machine, or another interpreter in the same place


class Prices:
    """By source, of the first interpreter that is recorded by it."""

    def __init__(self) -> None:
        self._kept = _load()
        self._known: dict[str, tuple[str, Measured]] = {}  # by source, with the key of what is kept
        self._expected: dict[str, float | None] = {}  # by source, until it is measured

    def price(self, source: str, target: Target | None) -> float | None:
        """Of a call of `target`, or of whatever the source was measured with; None where nobody ever measured it."""
        if source in self._known:
            return self._known[source][1].ns_per_call
        if target is None or source in self._expected:
            return self._expected.get(source)
        if (found := self._kept.get(_key(source, target))) is not None:
            self._known[source] = _key(source, target), found
            return self.price(source, target)
        self._expected[source] = expected_ns(source, target.python_version)
        return self._expected[source]

    def measured(self, source: str) -> Measured | None:
        """As what the price was; None until it was."""
        return self._known[source][1] if source in self._known else None

    def is_measured(self, source: str) -> bool:
        """Here, in this recording or one before."""
        return source in self._known

    def learn(self, source: str, target: Target, measured: Measured) -> None:
        """Take in what was measured, and keep it."""
        key = _key(source, target)
        before = self._kept.get(key)
        if before and all(1 / _SAME < new / old < _SAME for new, old in zip(measured[:2], before[:2], strict=True)):
            within = min(filter(None, (measured.within, before.within)), default=0.0)
            measured = measured._replace(alone=min(measured.alone, before.alone), recorded=min(measured.recorded, before.recorded), within=within)
        self._known[source] = key, measured
        if measured != before:
            self._kept = dict(list(({key: measured} | {other: value for other, value in _load().items() if other != key}).items())[:_MOST])
            program_cache.keep(_NAME, json.dumps(self._kept).encode())


def _key(source: str, target: Target) -> str:
    """The interpreter's file and the kernel, on which the price depends; and whose process answered, who might lie."""
    file = os.fstat(target.process.executable.fileno())
    return f"{target.process.credentials.owner} {source} {target.version_text} {file.st_dev} {file.st_ino} {file.st_size} {file.st_mtime_ns} {platform.release()}"


def _load() -> dict[str, Measured]:
    with suppress(ValueError, TypeError, AttributeError):
        found = json.loads(program_cache.load(_NAME) or b"{}")
        kept = {str(key): Measured(*map(float, values)) for key, values in found.items()}
        return {key: each for key, each in kept.items() if each.alone > 0 and each.recorded > 0 and each.within >= 0 and 0 <= each.code < 1}
    return {}
