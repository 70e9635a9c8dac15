"""What the threads of a process do at one moment, as `dump` prints it: what to look at first, threads that do the same together."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text

_MOST_FRAMES, _MOST_NAMES, _MOST_RESOURCES = 24, 4, 3
_ORDER = ("on_cpu", "runq_wait", "gil_wait", "blocked")
_RUNNING = {"on_cpu": "computing", "runq_wait": "waiting for a core", "gil_wait": "waiting for the GIL"}
_WAITING = {"lock": "waiting for a lock", "sleep": "sleeping", "wait-child": "waiting for", "other": "blocked"}

Thread = Mapping[str, Any]


def dump(found: Mapping[str, Any], width: int, whole: bool = False) -> Group:
    """`found`: what `dump --json` prints (cli/dump.py). `whole`: with all threads and frames."""
    parts = list[Text]()
    for same in _together(found["threads"]):
        parts += [Text(), *_threads(same, width, whole)]
    head = f"{found['command']}   Python {found['python'] or '(version not known)'}   pid {found['pid']}   {plural(len(found['threads']), 'thread')}"
    return Group(Text(text.clean(head), "bold", no_wrap=True, overflow="ellipsis"), Text(summary(found)), *parts)


def summary(found: Mapping[str, Any]) -> str:
    """One sentence: what the threads do, the most frequent first."""
    threads, names = found["threads"], {each["tid"]: each["name"] for each in found["threads"]}
    if not threads:
        return "No thread could be looked at."
    if len(threads) == 1:
        return f"Its only thread is {doing(threads[0])}."
    counts = Counter(doing(each) for each in threads)
    said = [f"{count:,} {'is' if count == 1 else 'are'} {what}" for what, count in sorted(counts.items(), key=lambda each: -each[1])]
    holder = found["gil_holder"]
    more = f" {_called(names[holder], holder)} holds the GIL." if holder in names and any(each["state"] == "gil_wait" for each in threads) else ""
    return f"Of {plural(len(threads), 'thread')} {_listed(said)}.{more}"


def doing(thread: Thread) -> str:
    """What a thread does, or waits for: "waiting in poll for tcp 127.0.0.1:5432 (postgres)"."""
    if thread["state"] in _RUNNING:
        return _RUNNING[thread["state"]]
    resources = [text.clean(each) for each in thread["resources"]]
    what = _listed(resources[:_MOST_RESOURCES]) + (f" and {len(resources) - _MOST_RESOURCES:,} more" if len(resources) > _MOST_RESOURCES else "")
    kind = thread["waits_for"]
    if kind in _WAITING and (kind == "wait-child") == bool(resources):
        return f"{_WAITING[kind]} {what}".strip()
    return f"waiting in {thread['syscall'] or 'the kernel'}" + (f" for {what}" if what else "")


def _together(threads: Iterable[Thread]) -> Iterator[list[Thread]]:
    """Threads that do the same at the same place; those first that run, or have code of the program's own on their stack."""

    def key(thread: Thread) -> tuple[Any, ...]:
        frames = tuple((frame["file"], frame["function"], frame["line"] or 0) for frame in thread["frames"])
        return not frames, not any(frame["own"] for frame in thread["frames"]), _ORDER.index(thread["state"]), frames, doing(thread)

    for _, same in groupby(sorted(threads, key=key), key):
        yield sorted(same, key=lambda thread: thread["tid"])


def _threads(same: list[Thread], width: int, whole: bool) -> Iterator[Text]:
    named = [_called(thread["name"], thread["tid"]) for thread in same]
    more = len(named) - _MOST_NAMES
    names = ", ".join(named if whole or more <= 0 else [*named[:_MOST_NAMES], f"{more:,} more"])
    waited = sorted(thread["off_cpu_ns"] for thread in same if thread["off_cpu_ns"] is not None)
    since = " to ".join(dict.fromkeys(map(text.duration, (waited[0], waited[-1])))) if waited else ""
    yield Text.assemble((text.clean(names), "bold"), f"  {doing(same[0])}" + (f", for {since}" if since else ""))
    frames = same[0]["frames"]
    shown = frames if whole else frames[:_MOST_FRAMES]
    for frame in shown:
        place = text.function(frame["function"], frame["file"], frame["line"], width - 4)
        yield Text.assemble("  > " if frame["own"] else "    ", place)
    if len(shown) < len(frames):
        yield Text(f"    ({plural(len(frames) - len(shown), 'frame')} more: --all)", "dim")
    if not frames:
        yield Text("    (no Python code)", "dim")


def _called(name: str, tid: int) -> str:
    return f"{text.clean(name)} ({tid})"


def _listed(parts: list[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else ""
