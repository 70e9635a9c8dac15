"""The rows of a view: those of a picture that were chosen, added up and in order. Values are plain, names as the program chose them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytrace_ebpf.trace.snapshot import OUTSIDE, TIMES, Rows, Snapshot
from pytrace_ebpf.trace.states import STATES
from pytrace_ebpf.view.top.selection import Choice

_COLUMN = (
    {state.label: f"{state.name}_ns" for state in STATES}
    | {"GIL held": "gil_held_ns", "core": "cpu", "times": "samples", "waited": "wait_ns"}
    | {"threads": "threads"}
)
_IDLE = "idle_ns"
_UNKNOWN = ("(unknown function)", "", "", -1)
_NONE = ("(no Python)", "", "", -1)


def picked(snapshot: Snapshot, choice: Choice) -> Rows:
    """Rows with `key` (tuple), TIMES, all_ns, work_ns, name, place (file and line) and what else the view has of them, the first to be shown first."""
    rows = [row for row in _OF[choice.view](snapshot, choice) if choice.text.lower() in row["text"].lower()]
    upwards = choice.sort in ("name", "kind", "core")
    rows.sort(key=lambda row: _order(row, choice.sort), reverse=upwards == choice.backwards)
    return rows


def _order(row: dict[str, Any], sort: str) -> Any:
    if sort in ("name", "kind"):
        return row[sort].lower(), -row["all_ns"]
    column = {"work": "work_ns", "all": "all_ns"}.get(sort) or _COLUMN[sort]
    return row.get(column, 0), row["all_ns"]


def name_of(snapshot: Snapshot, func_id: int) -> tuple[str, str, str, int]:
    """qualname, module, file, first line; what stands for a function that is none or has no name."""
    return _NONE if func_id == OUTSIDE else snapshot.names.get(func_id, _UNKNOWN)


def thread_names(snapshot: Snapshot) -> dict[int, str]:
    """By thread id."""
    return dict(snapshot.others) | {row["tid"]: row["name"] for row in snapshot.threads}


def of_choice(rows: Rows, choice: Choice) -> Rows:
    """Those of the chosen process, thread and function."""
    wanted = [(name, value) for name in ("pid", "tid", "func_id") if (value := getattr(choice, name)) is not None]
    return [row for row in rows if all(row[name] == value for name, value in wanted)]


def _added(
    rows: Iterable[dict[str, Any]], by: Callable[[dict[str, Any]], tuple[Any, ...]], columns: Iterable[str]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Sums of `columns` by key, and the threads that they are of; what else there is, is that of the first."""
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    columns = tuple(columns)
    for row in rows:
        key = by(row)
        into = out.setdefault(key, row | dict.fromkeys(columns, 0) | {"key": key, "tids": set(), "pids": set()})
        into["tids"].add(row["tid"])
        into["pids"].add(row["pid"])
        for name in columns:
            into[name] += row[name]
    return out


def _functions(snapshot: Snapshot, choice: Choice) -> Rows:
    prefix = "self_" if choice.own else ""
    rows = _added(of_choice(snapshot.functions, choice), lambda row: (row["func_id"],), (*(prefix + name for name in (*TIMES, _IDLE)), "samples"))
    return [_timed(row, snapshot, prefix) for row in rows.values() if any(row[prefix + name] for name in TIMES)]


def _lines(snapshot: Snapshot, choice: Choice) -> Rows:
    rows = _added(of_choice(snapshot.lines, choice), lambda row: (row["func_id"], row["line"]), (*TIMES, _IDLE, "samples"))
    return [_timed(row, snapshot, "", row["line"]) for row in rows.values()]


def _requests(snapshot: Snapshot, choice: Choice) -> Rows:
    rows = _added(of_choice(snapshot.requests, choice), lambda row: (row["func_id"],), (*TIMES, _IDLE, "samples"))
    return [_timed(row, snapshot, "") | {"threads": len(row["tids"])} for row in rows.values()]


def _timed(row: dict[str, Any], snapshot: Snapshot, prefix: str, line: int | None = None) -> dict[str, Any]:
    times = {name: row[prefix + name] for name in TIMES}
    name, module, file, first_line = name_of(snapshot, row["func_id"])
    place = file, first_line if line is None else line
    sums = _sums(times | {_IDLE: row[prefix + _IDLE]})
    return row | times | sums | {"name": name, "place": place, "text": f"{name} {module} {file}:{place[1]}"}


def _sums(times: Mapping[str, int]) -> dict[str, int]:
    """All time, and that but for what threads had nothing to do in."""
    all_ns = sum(times[name] for name in TIMES)
    return {"all_ns": all_ns, "work_ns": max(0, all_ns - times[_IDLE])}


def _threads(snapshot: Snapshot, choice: Choice) -> Rows:
    commands = {row["pid"]: row["command"] for row in snapshot.processes}
    out = []
    for row in of_choice(snapshot.threads, choice):
        name, module, file, first_line = name_of(snapshot, row["func_id"])
        sums = _sums(row)
        searched = (
            f"{row['name']} {row['pid']} {row['tid']} {commands.get(row['pid'], '')} {name} {module} {row['state']} {row['kind']} {row['syscall']}"
        )
        out.append(row | sums | {"key": (row["pid"], row["tid"]), "function": name, "place": (file, first_line), "text": searched})
    return out


def _wait_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["syscall"], row["resource"], row["func_id"]


def _waits(snapshot: Snapshot, choice: Choice) -> Rows:
    mine, by = of_choice(snapshot.waits, choice), thread_names(snapshot)
    rows = _added(mine, _wait_of, ("wait_ns", "queue_ns", _IDLE, "samples"))
    enders: dict[tuple[Any, ...], dict[int, int]] = {}
    for row in mine:
        of = enders.setdefault(_wait_of(row), {})
        if row["by_tid"]:
            of[row["by_tid"]] = of.get(row["by_tid"], 0) + row["wait_ns"] + row["queue_ns"]
    out = []
    for key, row in rows.items():
        name, module, file, first_line = name_of(snapshot, row["func_id"])
        tid = max(enders[key], key=lambda tid: enders[key][tid], default=0)
        is_gil = row["kind"] == "gil"
        times = {"gil_wait_ns": row["wait_ns"] if is_gil else 0, "blocked_ns": 0 if is_gil else row["wait_ns"], "runq_wait_ns": row["queue_ns"]}
        kind = row["kind"] or "other"
        ender = "" if not tid else by.get(tid) or f"thread {tid}"
        out.append(row | times | {
            "kind": kind, "name": name, "place": (file, first_line), "all_ns": row["wait_ns"] + row["queue_ns"],
            "work_ns": max(0, row["wait_ns"] + row["queue_ns"] - row[_IDLE]), "by": ender,
            "text": f"{kind} {row['syscall']} {row['resource']} {name} {module} {file} {ender}",
        })  # fmt: skip
    return [row for row in out if row["all_ns"]]


def _clients(snapshot: Snapshot, choice: Choice) -> Rows:
    """By server, file or pipe that something is waited for at, its name, and as `function` and place the function that waits most for it."""
    waits = [row for row in _waits(snapshot, choice) if row["resource"]]
    tids: dict[str, set[int]] = {}
    out: dict[str, dict[str, Any]] = {}
    for row in sorted(waits, key=lambda row: -row["all_ns"]):
        tids.setdefault(row["resource"], set()).update(row["tids"])
        into = out.setdefault(row["resource"], row | dict.fromkeys(_OF_CLIENTS, 0) | _named_client(row))
        into["text"] += row["text"] + " "
        for name in _OF_CLIENTS:
            into[name] += row.get(name, 0)
    return [row | {"threads": len(tids[row["resource"]])} for row in out.values()]


def _named_client(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": (row["resource"],), "name": row["resource"], "function": row["name"], "text": ""}


_OF_CLIENTS = ("wait_ns", "queue_ns", "gil_wait_ns", "blocked_ns", "runq_wait_ns", "all_ns", "work_ns", "samples")
_OF = {
    "functions": _functions, "threads": _threads, "lines": _lines, "requests": _requests, "waits": _waits, "clients": _clients,
}  # fmt: skip
