"""What the threads and tasks of a process do at one moment, as `dump` prints it: deadlocks first, then all, those that do the same together."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.text import Text

from pytrace_ebpf.trace.observed import CUT, REDACTED, UNREAD
from pytrace_ebpf.units import plural
from pytrace_ebpf.view import text

_MOST_FRAMES, _MOST_NAMES, _MOST_RESOURCES, _MOST_KINDS, _MOST_DEADLOCKS = 24, 4, 3, 6, 5
_LONGEST_VALUE = 60  # characters
_ORDER = ("on_cpu", "running", "runq_wait", "gil_wait", "blocked", "waiting")
_RUNNING = {"on_cpu": "computing", "runq_wait": "waiting for a core"}
_WAITING = {"lock": "waiting for a lock", "sleep": "sleeping", "wait-child": "waiting for", "other": "blocked"}
_ITSELF = "which it has itself"
_POOL = "ThreadPoolExecutor"

One = Mapping[str, Any]  # a thread, or a task


def dump(found: Mapping[str, Any], width: int, whole: bool = False) -> Group:
    """`found`: what `dump --json` prints (cli/dump.py). `whole`: with all threads and frames."""
    threads, tasks = found["threads"], found["tasks"]
    names, called = _names(threads), {each["id"]: text.clean(each["name"]) for each in tasks}
    parts = [Text(each, "bold red") for each in deadlocks(found)]
    parts.append(Text(summary(found)))
    if tasks:
        parts.append(Text(_summary("task", [_kind(each, called) for each in tasks])))
    parts += [Text(text.clean(each), "dim") for each in found["left_out"]]
    stuck, held = {tid for cycle in found["deadlocks"] for tid in cycle}, _held(threads)
    stuck_tasks, held_by_tasks = {task for cycle in found["task_deadlocks"] for task in cycle}, _held_by_tasks(tasks)

    def thread_does(thread: One) -> tuple[int, str, str]:
        rank = 0 if thread["tid"] in stuck else 1 if thread["tid"] in held else 2
        return rank, doing(thread, names), held.get(thread["tid"], "")

    for same in _together(threads, thread_does):
        _, does, has = thread_does(same[0])
        parts += [Text(), *_alike([_called(each["name"], each["tid"]) for each in same], same, does, width, whole, has)]

    def task_does(task: One) -> tuple[int, str, str]:
        rank = 0 if task["id"] in stuck_tasks else 1 if task["id"] in held_by_tasks else 2
        return rank, _kind(task, called), held_by_tasks.get(task["id"], "")

    for same in _together(tasks, task_does):
        has = held_by_tasks.get(same[0]["id"], "")
        parts += [Text(), *_alike([called[each["id"]] for each in same], same, _of_tasks(same, names, called), width, whole, has)]
    counted = plural(len(threads), "thread") + (f", {plural(len(tasks), 'task')}" if tasks else "")
    head = f"{found['command']}   Python {found['python'] or '(version not known)'}   pid {found['pid']}   {counted}"
    return Group(Text(text.clean(head), "bold", no_wrap=True, overflow="ellipsis"), *parts)


def deadlocks(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each cycle of threads, then of tasks, that wait for each other."""
    names, by_tid = _names(found["threads"]), {each["tid"]: each for each in found["threads"]}
    by_id = {each["id"]: each for each in found["tasks"]}
    called = {id_: text.clean(each["name"]) for id_, each in by_id.items()}
    said = [
        _deadlock([(names[tid], by_tid[tid], f"waits for {_object(by_tid[tid]['waits_on'], names, _alone(cycle))}") for tid in cycle])
        for cycle in found["deadlocks"][:_MOST_DEADLOCKS]
    ]
    for cycle in found["task_deadlocks"][:_MOST_DEADLOCKS]:
        following = dict(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        said.append(_deadlock([(called[each], by_id[each], f"awaits {_awaited(by_id[each], following[each], called)}") for each in cycle]))
    left = len(found["deadlocks"]) + len(found["task_deadlocks"]) - len(said)
    return [*said, f"{plural(left, 'more deadlock')}."] if left > 0 else said


def _alone(cycle: Sequence[int]) -> str | None:
    return _ITSELF if len(cycle) == 1 else None


def _deadlock(parts: Iterable[tuple[str, One, str]]) -> str:
    """`parts`: of each thread or task its name, itself, and what it waits for."""
    said = []
    for name, one, waits in parts:
        own = next((frame for frame in one["frames"] if frame["own"]), None)
        where = f", in {text.clean(own['function'])} {text.clean(own['file'])}:{own['line'] or own['first_line']}," if own else ""
        said.append(f"{name}{where} {waits}")
    return f"Deadlock: {'; '.join(said)}."


def _awaited(task: One, other: int, called: Mapping[int, str]) -> str:
    """What a task awaits of another, or of itself."""
    on = task["waits_on"]
    if on and other in on["holders"]:
        return f"{text.clean(on['name'] or 'a lock')}, which {'it has itself' if other == task['id'] else called[other] + ' has'}"
    return "itself" if other == task["id"] else called[other]


def summary(found: Mapping[str, Any]) -> str:
    """One sentence: what the threads do, the most frequent first."""
    threads, names = found["threads"], _names(found["threads"])
    if not threads:
        return "No thread could be looked at."
    return _summary("thread", [doing(each, names) for each in threads])


def _summary(what: str, doings: Sequence[str]) -> str:
    if len(doings) == 1:
        return f"Its only {what} is {doings[0]}."
    counts = sorted(Counter(doings).items(), key=lambda each: -each[1])
    shown = counts if len(counts) <= _MOST_KINDS else counts[: _MOST_KINDS - 1]
    said = [f"{count:,} {'is' if count == 1 else 'are'} {doing}" for doing, count in shown]
    if len(shown) < len(counts):
        said.append(f"{len(doings) - sum(count for _, count in shown):,} do something else")
    return f"Of {plural(len(doings), what)} {_listed(said)}."


def doing(thread: One, names: Mapping[int, str]) -> str:
    """What a thread does, or waits for: "waiting in poll for tcp 127.0.0.1:5432 (postgres)". `names`: of threads, by their ids."""
    if thread["state"] in _RUNNING:
        return _RUNNING[thread["state"]]
    waits, kind = thread["waits_on"], thread["waits_for"]
    if kind == "gil":
        return "waiting for the GIL" + (f", which {names[waits['holder']]} has" if waits and waits["holder"] in names else "")
    if waits and (waits["holder"] or waits["kind"] == "import"):
        return f"waiting for {_object(waits, names, _ITSELF if waits['holder'] == thread['tid'] else None)}"
    if kind == "lock" and thread["primitive"]:
        return "waiting for work" if thread["primitive"] == _POOL else f"waiting in {text.clean(thread['primitive'])}"
    if waits and waits["name"]:
        return f"waiting for {text.clean(waits['name'])}, a lock"
    resources = [text.clean(each) for each in thread["resources"]]
    what = _listed(resources[:_MOST_RESOURCES]) + (f" and {len(resources) - _MOST_RESOURCES:,} more" if len(resources) > _MOST_RESOURCES else "")
    if kind in _WAITING and (kind == "wait-child") == bool(resources):
        return f"{_WAITING[kind]} {what}".strip()
    return f"waiting in {thread['syscall'] or 'the kernel'}" + (f" for {what}" if what else "")


def awaiting(task: One, called: Mapping[int, str]) -> str:
    """What a task of asyncio does, or waits for. `called`: the names of tasks by their ids."""
    if task["awaits"] and task["state"] != "running":
        more = [f"{task['awaits_more']:,} more"] if task["awaits_more"] else []
        return f"awaiting {_listed([text.clean(each) for each in task['awaits']] + more)}"
    return _kind(task, called)


def _kind(task: One, called: Mapping[int, str]) -> str:
    """The same, without names of other tasks that it awaits."""
    if task["state"] == "running":
        return "running"
    if task["awaits"]:
        return "awaiting other tasks"
    if on := task["waits_on"]:
        holders = ["it itself" if each == task["id"] else called[each] for each in on["holders"] if each in called]
        more = [f"{len(holders) - _MOST_NAMES:,} more"] if len(holders) > _MOST_NAMES else []
        has = f", which {_listed(holders[:_MOST_NAMES] + more)} {'has' if len(holders) == 1 else 'have'}" if holders else ""
        return f"awaiting {text.clean(on['name']) if on['name'] else 'a ' + on['kind']}{has}"
    return f"awaiting {text.clean(task['primitive']) if task['primitive'] else 'a future'}"


def _of_tasks(same: Sequence[One], names: Mapping[int, str], called: Mapping[int, str]) -> str:
    loop = f" of the loop of {names[same[0]['thread']]}" if same[0]["thread"] in names else ""
    return f"{'a task' if len(same) == 1 else 'tasks'}{loop}, {awaiting(same[0], called) if len(same) == 1 else _kind(same[0], called)}"


def _object(waits: Mapping[str, Any], names: Mapping[int, str], has: str | None = None) -> str:
    """What a thread waits for, and who has it: `has`, where that is to be said so."""
    holder = names.get(waits["holder"], "")
    name = text.clean(waits["name"]) if waits["name"] else None
    if waits["kind"] == "thread":
        return f"the end of {'itself' if has else holder or 'a thread'}"
    if waits["kind"] == "import":
        return f"the import of {name}" + (f", which {holder} does" if holder else "")
    return (name or "a lock") + (f", {has or f'which {holder} has'}" if has or holder else "")


def _names(threads: Iterable[One]) -> dict[int, str]:
    return {each["tid"]: _called(each["name"], each["tid"]) for each in threads}


def _held(threads: Iterable[One]) -> dict[int, str]:
    """By thread which locks it has that others wait for: "; has self._lock (5 wait for it)"."""
    counts: dict[int, Counter[str]] = {}
    for each in threads:
        on = each["waits_on"]
        if on and on["kind"] in ("lock", "rlock") and on["holder"] not in (None, each["tid"]):
            counts.setdefault(on["holder"], Counter())[on["name"] or "a lock"] += 1
    return _has(counts)


def _held_by_tasks(tasks: Iterable[One]) -> dict[int, str]:
    """The same by task, of asyncio's locks and semaphores."""
    counts: dict[int, Counter[str]] = {}
    for each in tasks:
        on = each["waits_on"]
        for holder in on["holders"] if on else ():
            counts.setdefault(holder, Counter())[on["name"] or f"a {on['kind']}"] += 1
    return _has(counts)


def _has(counts: Mapping[int, "Counter[str]"]) -> dict[int, str]:
    return {
        one: "; has " + _listed([f"{text.clean(name)} ({n:,} wait{'s' if n == 1 else ''} for it)" for name, n in of.most_common(_MOST_RESOURCES)])
        for one, of in counts.items()
    }


def _together(some: Iterable[One], what: Callable[[One], tuple[int, str, str]]) -> Iterator[list[One]]:
    """Those that do the same at the same place; first those of a deadlock, then who has what others wait for, those that run, or have own code.

    `what`: the lesser the earlier; then what one does, and has.
    """

    def key(one: One) -> tuple[Any, ...]:
        frames = tuple(
            (frame["file"], frame["function"], frame["line"] or 0, tuple(map(variable, frame.get("variables") or ()))) for frame in one["frames"]
        )
        own = any(frame["own"] for frame in one["frames"])
        rank, *does = what(one)
        return rank, not frames, not own, _ORDER.index(one["state"]), frames, does, one.get("thread") or 0

    for _, same in groupby(sorted(some, key=key), key):
        yield list(same)


def _alike(named: Sequence[str], same: Sequence[One], what: str, width: int, whole: bool, has: str = "") -> Iterator[Text]:
    more = len(named) - _MOST_NAMES
    names = ", ".join(named if whole or more <= 0 else [*named[:_MOST_NAMES], f"{more:,} more"])
    waited = sorted(one["off_cpu_ns"] for one in same if one.get("off_cpu_ns") is not None)
    since = " to ".join(dict.fromkeys(map(text.duration, (waited[0], waited[-1])))) if waited else ""
    yield Text.assemble((names, "bold"), f"  {what}" + (f", for {since}" if since else "") + has)
    frames = same[0]["frames"]
    shown = frames if whole else frames[:_MOST_FRAMES]
    for frame in shown:
        place = text.function(frame["function"], frame["file"], frame["line"], width - 4)
        yield Text.assemble("  > " if frame["own"] else "    ", place)
        for each in frame.get("variables") or ():
            yield Text(f"        {variable(each)}", "dim", no_wrap=True, overflow="ellipsis")
    if len(shown) < len(frames):
        yield Text(f"    ({plural(len(frames) - len(shown), 'frame')} more: --all)", "dim")
    if not frames:
        yield Text("    (no Python code)", "dim")


def variable(one: Mapping[str, Any]) -> str:
    """A variable and its value, as `report --by args` has them: "size: int = 3", "rows: list[20]", "x: ndarray[float32 2x3]"."""
    name, kind, value = (text.clean(one[part] or "?") for part in ("name", "type", "value"))
    if one["status"] in (REDACTED, UNREAD):
        return f"{name}: {kind} ({one['status']})"
    if kind == "NoneType":
        return f"{name}: None"
    sizes = "x".join(map(str, one["shape"])) if one["shape"] else "()" if one["shape"] is not None else ""
    if one["value"] is None:
        inner = " ".join(part for part in (one["dtype"], sizes) if part)
        return f"{name}: {kind}[{inner}]" if inner else f"{name}: {kind}"
    cut = "…" if one["status"] == CUT or len(value) > _LONGEST_VALUE else ""
    mark = "'" if one["type"] == "str" else ""
    return f"{name}: {kind} = {mark}{value[:_LONGEST_VALUE]}{mark}{cut}"


def _called(name: str, tid: int) -> str:
    return f"{text.clean(name)} ({tid})"


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1] if parts else ""
