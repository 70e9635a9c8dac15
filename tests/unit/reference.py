"""The reconstruction again, slow and obvious: one event at a time, one thread at a time.

Takes the same plain rows as synthetic.write_trace and answers with schema.CALLS as dictionaries; nothing that rebuilds is imported.
A thread is a stack of activations, and one set of rules holds for all of its rows, whether or not anything was lost:
- an entry goes on top; if its frame is open already, that activation and all above it have ended: now, as far as one can know;
- a return ends the activation of its frame and, as lost returns, what is above it; with an unknown frame (0), or above an
  activation of one, it ends the top where its own frame is not open;
- a return of a frame that is not open is of an activation entered unseen: before the thread's first row, or within a loss
  just passed, where that can be; else right before the return;
- what was open before a loss and is proved gone before anything above it returned, ended in the loss;
- a reset ends everything. The rules of scheduling stand in pytrace_ebpf/rebuild/states.c.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytrace_ebpf.trace.schema import CALL_LOSSES, SCHED_LOSSES, SYSCALL_UNKNOWN, CallKind, SchedKind

Row = tuple[Any, ...]
PARTS = ("on_cpu_ns", "runq_wait_ns", "gil_wait_ns", "blocked_ns")
PRECEDENCE = ("in_loss", "repaired", "unwound", "open_at_start", "open_at_end")


@dataclass
class Move:
    """A step of a thread after mending: in or out of a call."""

    enters: bool
    ts: int
    frame: int = 0
    func: int = -1
    line: int = -1
    flag: str = ""
    kind: int = -1


@dataclass
class Call:
    number: int
    entry: Move
    parent: "Call | None"
    children: "list[Call]" = field(default_factory=list)
    leave: Move | None = None
    last: int = 0

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def counted_as(self) -> int:
        """Its function while it is open: as its entry reported or, where that was not seen, as its end will report."""
        assert self.leave is not None
        return self.leave.func if self.entry.kind < 0 else self.entry.func

    def above(self) -> "list[Call]":
        return [] if self.parent is None else [self.parent, *self.parent.above()]

    @property
    def wall(self) -> int:
        assert self.leave is not None
        return self.leave.ts - self.entry.ts


def windows_of(losses: Sequence[Row], classes: tuple[str, ...]) -> list[list[int]]:
    merged: list[list[int]] = []
    for _, start, end, *_ in sorted((r for r in losses if r[0] in classes), key=lambda r: r[1]):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


# --- scheduling ---------------------------------------------------------------------------------


@dataclass
class Switch:
    ts: int
    state: str  # on_cpu, runq_wait, gil_wait, blocked, unknown, gone
    kind: int
    cpu: int  # last core known
    migrated: bool = False
    throttled: int = 0


def timeline(rows: Sequence[Row], segments: list[tuple[int, int]], windows: list[list[int]], gil: tuple[int, int]) -> list[Switch]:
    """One thread's switches."""
    out = [Switch(-1, "unknown", -1, -1)]
    pending = [list(w) for w in windows]
    for low, high in segments:
        mine = [(r[0], 1, r) for r in rows if low <= r[0] < high]
        mine = [m for m in mine if m[2][3] == SchedKind.EXIT or not any(s <= m[0] <= e for s, e in windows)]
        while pending and pending[0][0] < high:
            mine.append((max(pending.pop(0)[0], low), 0, ()))
        mine.sort(key=lambda m: m[:2])
        alive = [m for m in mine if not m[1] or m[2][3] != SchedKind.MIGRATE]
        first, woken = len(out), False  # while it had its core
        for place, (ts, _, row) in enumerate(alive):
            if row:
                woken = _turn_out(out, first, SchedKind(row[3]), woken, row)
            else:
                woken = False
            _switch(out, ts, row, [m[2] for m in alive[place + 1 :]], gil)
    return out


def _turn_out(out: list[Switch], first: int, kind: SchedKind, woken: bool, row: Row) -> bool:
    """Change what the last state was by what follows it. `first`: the first switch of the segment. Returns whether the thread was woken on its core."""
    last, here = out[-1], len(out) > first
    if last.state == "gone":
        return woken
    waited = last.state in ("gil_wait", "blocked")
    leaves = kind in (SchedKind.OUT, SchedKind.EXIT)
    if waited and woken and (leaves or kind == SchedKind.IN):
        out.append(Switch(last.ts, "runq_wait", SchedKind.WAKING, last.cpu))
        last, waited = out[-1], False
    if kind == SchedKind.IN and waited:
        last.state = "slept"
    elif kind == SchedKind.IN and last.state == "on_cpu":
        last.state = "unseen"
    elif leaves and last.state == "runq_wait":
        last.state = "ready"
    elif leaves and (waited or last.state == "off_cpu"):
        last.state = "unseen"
    if kind == SchedKind.WAKING and last.state == "runq_wait" and last.kind == SchedKind.WAKING and here:
        last.state = "unseen"
    if kind == SchedKind.WAKING:
        return last.state == "on_cpu"
    return woken and kind in (SchedKind.OUT, SchedKind.MIGRATE, SchedKind.SNAPSHOT)


def _switch(out: list[Switch], ts: int, row: Row, later: list[Row], gil: tuple[int, int]) -> None:
    state, cpu = out[-1].state, out[-1].cpu
    if not row:
        if state != "gone":
            out.append(Switch(ts, "unknown", -1, cpu))
        return
    kind = row[3]
    if state == "gone" and kind not in (SchedKind.FORK, SchedKind.EXEC):
        return
    runnable = row[5] & 0x7F == 0
    waits = "off_cpu" if row[6] == SYSCALL_UNKNOWN else "gil_wait" if row[6] == 202 and gil[0] <= row[7] < gil[1] else "blocked"
    if kind == SchedKind.IN:
        moved = cpu >= 0 and cpu != row[4]
        out.append(Switch(ts, "on_cpu", kind, row[4], moved, row[7]))
    elif kind == SchedKind.OUT:
        out.append(Switch(ts, "runq_wait" if runnable else waits, kind, row[4]))
    elif kind == SchedKind.WAKING:
        if state != "on_cpu":
            out.append(Switch(ts, "runq_wait", kind, cpu))
    elif kind == SchedKind.FORK:
        out.append(Switch(ts, "runq_wait", kind, cpu))
    elif kind == SchedKind.EXEC:
        out.append(Switch(ts, "on_cpu", kind, row[4]))
    elif kind == SchedKind.EXIT:
        out.append(Switch(ts, "gone", kind, cpu))
    elif kind == SchedKind.SNAPSHOT and state == "unknown":
        following = later[0][3] if later and later[0] else -1
        if following == SchedKind.IN and (runnable or waits != "off_cpu"):
            state = "runq_wait"
        elif following in (SchedKind.OUT, SchedKind.EXIT) or runnable:
            state = "on_cpu"
        else:
            state = waits
        out.append(Switch(ts, state, kind, row[4] if state == "on_cpu" else cpu))


def split(switches: list[Switch], start: int, end: int) -> dict[str, Any]:
    """The split columns of [start, end]; None where scheduling is unknown."""
    spent = dict.fromkeys(("on_cpu", "runq_wait", "gil_wait", "blocked", "off_cpu", "ready", "slept", "unseen", "unknown", "gone"), 0)
    for switch, after in zip(switches, [s.ts for s in switches[1:]] + [2**62], strict=True):
        spent[switch.state] += max(0, min(after, end) - max(switch.ts, start))
    at_start = [s for s in switches if s.ts <= start][-1]
    at_end = [s for s in switches if s.ts <= end][-1]
    inside = [s for s in switches if start < s.ts <= end]
    unknown = spent["unknown"] or spent["gone"] or (start == end and at_start.state in ("unknown", "gone"))
    names = ("on_cpu_ns", "runq_wait_ns", "throttled_ns", "gil_wait_ns", "blocked_ns", "first_cpu", "last_cpu", "migrations", "preemptions", "waits")
    if unknown:
        return dict.fromkeys(names)
    came = [s for s in inside if s.state == "on_cpu"]
    first = at_start.cpu if at_start.state == "on_cpu" else came[0].cpu if came else None
    told = not (spent["off_cpu"] or spent["slept"] or spent["unseen"])
    counted = not (spent["ready"] or spent["unseen"])
    whole = {
        "on_cpu_ns": spent["on_cpu"] if counted else None,
        "runq_wait_ns": spent["runq_wait"] if told and counted else None,
        "throttled_ns": min(spent["runq_wait"], sum(s.throttled for s in inside)) if told and counted else None,
        "gil_wait_ns": spent["gil_wait"] if told else None,
        "blocked_ns": spent["blocked"] if told else None,
    }
    if not counted:
        return dict.fromkeys(names) | whole
    return whole | {
        "first_cpu": first,
        "last_cpu": None if first is None else at_end.cpu,
        "migrations": sum(s.migrated for s in inside),
        "preemptions": sum(s.kind == SchedKind.OUT and s.state in ("runq_wait", "ready") for s in inside),
        "waits": sum(s.kind == SchedKind.OUT and s.state not in ("runq_wait", "ready") for s in inside),
    }


def self_part(whole: int | None, below: list[int | None]) -> int | None:
    return None if whole is None or None in below else whole - sum(b for b in below if b is not None)


def known(func: int, named: int) -> int:
    return func if 0 <= func < named else -1


# --- calls --------------------------------------------------------------------------------------


class Thread:
    """One thread's reconstruction; `stack` holds the open calls between chunks."""

    def __init__(self, number: int, start: int) -> None:
        self.base = number << 40
        self.begins, self.mark, self.last = "first", start, -1
        self.calls: list[Call] = []
        self.roots: list[Call] = []
        self.stack: list[Call] = []

    def chunk(self, events: list[Row]) -> None:
        if not events:
            return
        if self.begins == "first":
            self.mark = min(self.mark, events[0][0])
        moves = self._moves(events)
        for move in moves:
            self._apply(move)
        self.last = events[-1][0] if events[-1][3] == CallKind.RESET else moves[-1].ts
        self.begins = "settled"

    def lost(self, start: int) -> None:
        if self.begins == "settled":
            self.begins, self.mark = "after loss", max(start, self.last)

    def end(self, ts: int) -> None:
        while self.stack:
            self._apply(Move(False, ts, flag="open_at_end"))

    def _move(self, row: Row) -> Move:
        ts, _, _, kind, func, frame, line = row
        if kind == CallKind.OPEN:
            return Move(True, self.mark if self.begins == "first" else ts, frame, func, line, "open_at_start", kind)
        return Move(kind in (CallKind.ENTRY, CallKind.RESUME), ts, frame, func, line, "unwound" if kind == CallKind.UNWIND else "", kind)

    def _moves(self, events: list[Row]) -> list[Move]:
        """What the thread did, by the rules of a stack of activations, whether or not anything was lost."""
        frames = [c.entry.frame for c in self.stack]
        base = len(frames)  # how many of them are from before this chunk
        base_returned = False
        ended_before = entered_before = 0
        seen = {f for f in frames if f}
        moves: list[Move] = []
        last = self.last

        def close(height: int, ts: int, flag: str) -> None:
            nonlocal base, base_returned
            while len(frames) > height:
                frames.pop()
                moves.append(Move(False, ts, flag=flag))
                if len(frames) < base:
                    base, base_returned = len(frames), True

        for row in events:
            move = self._move(row)
            at = max((k for k, f in enumerate(frames) if f == move.frame != 0), default=-1)
            may_end_before = self.begins == "after loss" and at < base and not base_returned
            if row[3] == CallKind.RESET:
                close(0, move.ts, "unwound")
            elif move.enters:
                if at >= 0 and may_end_before:
                    ended_before += base - at
                    del frames[at:base]
                    base = at
                elif at >= 0:
                    close(at, move.ts, "repaired")
                frames.append(move.frame)
                moves.append(move)
            else:
                if at < 0 and frames and 0 in (move.frame, frames[-1]):
                    at = len(frames) - 1
                    may_end_before = self.begins == "after loss" and at < base and not base_returned
                older = not (move.frame and move.frame in seen) and (
                    (self.begins == "first" and not frames) or (self.begins == "after loss" and len(frames) == base and not base_returned)
                )
                if at >= 0:
                    if may_end_before:
                        close(base, move.ts, "repaired")
                        ended_before += base - at - 1
                        del frames[at + 1 : base]
                        base = at + 1
                    close(at + 1, move.ts, "repaired")
                    frames.pop()
                    if len(frames) < base:
                        base, base_returned = len(frames), True
                elif older:
                    entered_before += 1
                else:
                    moves.append(Move(True, last, flag="repaired"))
                moves.append(move)
            if move.frame:
                seen.add(move.frame)
            last = move.ts
        flag = "open_at_start" if self.begins == "first" else "repaired"
        beginning = [Move(False, self.mark, flag="repaired") for _ in range(ended_before)]
        beginning += [Move(True, self.mark, flag=flag) for _ in range(entered_before)]
        return beginning + moves

    def _apply(self, move: Move) -> None:
        if move.enters:
            parent = self.stack[-1] if self.stack else None
            call = Call(len(self.calls), move, parent)
            (parent.children if parent else self.roots).append(call)
            self.calls.append(call)
            self.stack.append(call)
        else:
            call = self.stack.pop()
            call.leave, call.last = move, len(self.calls) - 1

    def rows(self, pid: int, tid: int, switches: list[Switch], windows: list[list[int]], named: int) -> list[dict[str, Any]]:
        return [self._row(call, pid, tid, switches, windows, named) for call in self.calls]

    def _row(self, call: Call, pid: int, tid: int, switches: list[Switch], windows: list[list[int]], named: int) -> dict[str, Any]:
        assert call.leave is not None
        start, end = call.entry.ts, call.leave.ts
        family = call.parent.children if call.parent else self.roots
        sibling = family.index(call) + 1
        flags = {call.entry.flag, call.leave.flag}
        if any(s <= end and e >= start for s, e in windows):
            flags.add("in_loss")
        here = split(switches, start, end)
        below = [split(switches, c.entry.ts, c.leave.ts) for c in call.children if c.leave]
        resumed, yielded = call.entry.kind == CallKind.RESUME, call.leave.kind == CallKind.YIELD
        func = call.entry.func if call.entry.func >= 0 else call.leave.func
        return {
            "call_id": self.base + call.number,
            "parent_id": self.base + call.parent.number if call.parent else -1,
            "last_descendant_id": self.base + call.last,
            "next_sibling_id": self.base + family[sibling].number if sibling < len(family) else -1,
            "depth": call.depth,
            "layer": "python",
            "pid": pid,
            "tid": tid,
            "func_id": func,
            "start_ns": start,
            "end_ns": end,
            "wall_ns": call.wall,
            **here,
            "self_wall_ns": call.wall - sum(c.wall for c in call.children),
            **{f"self_{name}": self_part(here[name], [child[name] for child in below]) for name in PARTS},
            "outermost": not any(known(above.counted_as, named) == known(func, named) for above in call.above()),
            "frame": (call.entry.frame or call.leave.frame) if resumed or yielded or "repaired" in flags else 0,
            "resumed": resumed,
            "yielded": yielded,
            "line": call.leave.line,
            "call_line": call.entry.line if call.parent and call.entry.line > 0 else None,
            "status": next((s for s in PRECEDENCE if s in flags), "complete"),
        }


def calls(
    *,
    events: Sequence[Row],
    sched: Sequence[Row] = (),
    threads: Sequence[Row],
    processes: Sequence[Row],
    functions: Sequence[Row] = (),
    losses: Sequence[Row] = (),
    start_ns: int,
    end_ns: int,
    cuts: Sequence[int] = (),
    manifest: Any = None,
) -> list[dict[str, Any]]:
    """All calls, in the order of call_id; arguments as of synthetic.write_trace."""
    borders = [start_ns, *cuts, end_ns]
    segments = list(zip(borders, borders[1:], strict=False))
    windows, blind = windows_of(losses, CALL_LOSSES), windows_of(losses, SCHED_LOSSES)
    process = {p[0]: p for p in processes}
    out = []
    named = max((f[0] for f in functions), default=-1) + 1
    for number, (pid, tid, _, born, died) in enumerate(sorted(threads, key=lambda t: t[:2])):
        thread = Thread(number, max(born, process[pid][8], start_ns))
        mine = [r for r in events if (r[1], r[2]) == (pid, tid)]
        pending = list(windows)
        for low, high in segments:
            rows = [r for r in mine if low <= r[0] < high]
            while pending and pending[0][1] < high:
                start, end = pending.pop(0)
                thread.chunk([r for r in rows if r[0] <= end])
                rows = [r for r in rows if r[0] > end]
                thread.lost(start)
            thread.chunk(rows)
        own = [r for r in sched if (r[1], r[2]) == (pid, tid)]
        switches = timeline(own, segments, blind, process[pid][6:8])
        if switches[-1].state == "gone":
            died = switches[-1].ts
        thread.end(max(end_ns if died is None else died, thread.last, switches[-1].ts))
        out += thread.rows(pid, tid, switches, windows, named)
    if not (manifest or {}).get("scheduling", {}).get("throttling"):
        out = [call | {"throttled_ns": None} for call in out]
    return out
